//! Copies under way while the weights are switched, and drives that do not answer.

use std::{
    sync::{
        Arc, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use dynamo_llm::block_manager::{
    Arrival, KvBlockManager, KvBlockManagerConfig, ManagerError, OnboardOptions, Tier,
    TransferError,
    config::Capacity,
    io::{
        FileOp,
        fault::{FaultVolume, Faults, MemoryVolume},
    },
    storage::disk::DiskError,
    transfer::{FaultEngine, Faults as CopyFaults, HostEngine},
};

use crate::gate::GatedVolume;
use crate::{
    rig::{FROM_DISK, LONG, Rig, Setup, TO_DISK, hashes},
    versions::{
        SHORT, compute, eventually, get, get_from_disk, name, put, quarantined, store, switch,
        under,
    },
};

fn is_stale(result: &Result<Arrival, TransferError>) -> bool {
    matches!(result, Err(TransferError::Stale { .. }))
}

#[test]
fn copies_between_memories_that_began_before_are_stale() {
    let dir = tempfile::tempdir().unwrap();
    let setup = under(&Setup::new(32, 64).dir(dir.path()).manual(), 1);
    let engine = |name| {
        let engine = Arc::new(HostEngine::new(name, 1, 1 << 10));
        Arc::new(FaultEngine::new(engine, CopyFaults::none(0)))
    };
    let (load, store) = (engine("load"), engine("store"));
    let builder = KvBlockManagerConfig::builder().settings(setup.settings);
    let config = builder.engines(load.clone(), store.clone()).build().unwrap();
    let rig = Rig { manager: KvBlockManager::new_blocking(config).unwrap() };
    let (up, down) = (hashes(1, 4), hashes(2, 4));
    let to_host = |chain: &[_]| rig.manager.offload(&compute(&rig, 1, chain)).unwrap();
    assert!(to_host(&up).wait(Some(LONG)).unwrap().iter().all(Result::is_ok));
    rig.clear_device();
    load.stall();
    store.stall();
    let found = rig.manager.lookup(&up).unwrap();
    let loading = rig.manager.start_onboard(found, OnboardOptions::default()).unwrap();
    let storing = to_host(&down);
    switch(&rig, 2);
    load.resume();
    store.resume();
    assert!(storing.wait(Some(LONG)).unwrap().iter().all(is_stale));
    let loaded = loading.wait(Some(LONG)).unwrap();
    assert!(loaded.is_empty() && loaded.results.iter().all(is_stale), "{:?}", loaded.results);
    for chain in [&up, &down] {
        assert!(chain.iter().all(|hash| rig.manager.lookup(&[*hash]).unwrap().is_empty()));
        put(&rig, 2, chain);
        assert_eq!(get(&rig, 2, chain), 4);
    }
    assert_eq!(rig.manager.host().unwrap().status().quarantined, 0);
    rig.close();
}

#[test]
fn a_slot_whose_write_hangs_is_nobody_elses_before_its_end() {
    let volume = Arc::new(GatedVolume::new());
    let gate = volume.gate.clone();
    let setup = Setup::new(0, 4).volume(volume).manual();
    // More than one thread that stores: one is stuck.
    let rig = under(&setup.with(|config| config.disk.io_threads = 8), 1).open();
    gate.arm(FileOp::Write, ".data");
    let slow = hashes(1, 1);
    let storing = rig.manager.offload_to(&compute(&rig, 1, &slow), Tier::Disk).unwrap();
    gate.wait_until_shut();
    // Others have three of the four slots meanwhile, under whichever version.
    for version in [2, 1, 3, 2] {
        switch(&rig, version);
        let chain = hashes(10 + version, 3);
        put(&rig, version, &chain);
        assert_eq!(get_from_disk(&rig, version, &chain), 3);
        let one_more = store(&rig, version, &hashes(20, 1));
        assert!(one_more.iter().all(Result::is_ok), "one of the three makes room");
        rig.clear_memory();
    }
    let last = hashes(40, 3);
    put(&rig, 2, &last);
    assert!(!gate.trespassed());
    gate.open();
    assert!(storing.wait(Some(LONG)).unwrap().iter().all(is_stale));
    rig.clear_memory();
    // What has landed late hurt nobody, and its slot is in use again.
    assert_eq!(get_from_disk(&rig, 2, &last), 3);
    assert_eq!((get_from_disk(&rig, 2, &slow), quarantined(&rig)), (0, 0));
    eventually("the slot is free", || rig.manager.disk().unwrap().status().mutable == 0);
    let four = hashes(30, 4);
    put(&rig, 2, &four);
    assert_eq!(get_from_disk(&rig, 2, &four), 4);
    switch(&rig, 1);
    assert_eq!(get_from_disk(&rig, 1, &slow), 0);
    rig.close();
}

#[test]
fn who_waited_for_a_copy_from_before_gets_none_of_old_bytes_under_the_new_version() {
    let volume = Arc::new(GatedVolume::new());
    let gate = volume.gate.clone();
    let setup = Setup::new(0, 8).volume(volume).manual();
    let rig = under(&setup.with(|config| config.disk.io_threads = 8), 1).open();
    let chain = hashes(1, 1);
    let blocks = compute(&rig, 1, &chain);
    gate.arm(FileOp::Write, ".data");
    let both = [0, 1].map(|_| rig.manager.offload_to(&blocks, Tier::Disk).unwrap());
    gate.wait_until_shut();
    switch(&rig, 2);
    // Goes on, and another write would be stopped.
    gate.arm(FileOp::Write, ".data");
    for storing in both {
        assert!(storing.wait(Some(LONG)).unwrap().iter().all(is_stale));
    }
    assert!(!gate.is_shut(), "bytes of version 1 are written once more");
    gate.open();
    drop(blocks);
    rig.clear_memory();
    assert_eq!(get_from_disk(&rig, 2, &chain), 0);
    rig.close();
}

#[test]
fn a_load_that_began_before_is_stale_and_its_block_is_none_the_worse() {
    let volume = Arc::new(GatedVolume::new());
    let gate = volume.gate.clone();
    let rig = under(&Setup::new(0, 4).volume(volume).manual(), 1).open();
    let chain = hashes(1, 2);
    put(&rig, 1, &chain);
    for back in [false, true] {
        gate.arm(FileOp::Read, ".data");
        let found = rig.manager.lookup(&chain).unwrap();
        let loading = rig.manager.start_onboard(found, OnboardOptions::default()).unwrap();
        gate.wait_until_shut();
        switch(&rig, 2);
        if back {
            assert_eq!(switch(&rig, 1), 2);
        } else {
            // Into the slots that are being read: those of another version are room.
            put(&rig, 2, &hashes(2, 2));
        }
        gate.open();
        let loaded = loading.wait(Some(LONG)).unwrap();
        assert!(loaded.is_empty() && loaded.results.iter().any(is_stale), "{:?}", loaded.results);
        assert_eq!(quarantined(&rig), 0);
        switch(&rig, 1);
        assert_eq!(get_from_disk(&rig, 1, &chain), 2);
    }
    rig.close();
}

#[test]
fn what_was_read_before_a_reset_or_another_switch_is_not_found_after_it() {
    let volume = Arc::new(GatedVolume::new());
    let gate = volume.gate.clone();
    let rig = under(&Setup::new(0, 16).volume(volume).manual(), 1).open();
    let chain = hashes(1, 4);
    put(&rig, 1, &chain);
    switch(&rig, 2);
    put(&rig, 2, &chain[..2]);
    let revision = || rig.manager.settings().model.revision.clone().unwrap();
    gate.arm(FileOp::Read, ".table");
    thread::scope(|scope| {
        let first = scope.spawn(|| switch(&rig, 1));
        gate.wait_until_shut();
        let later = scope.spawn(|| switch(&rig, 2));
        eventually("the later one is in force", || revision() == name(2));
        gate.open();
        // Either may be the one to find them.
        assert_eq!(first.join().unwrap() + later.join().unwrap(), 2);
    });
    assert_eq!((get_from_disk(&rig, 2, &chain), quarantined(&rig)), (2, 0));

    let resets = || rig.manager.disk().unwrap().status().resets;
    gate.arm(FileOp::Read, ".table");
    thread::scope(|scope| {
        let switched = scope.spawn(|| switch(&rig, 1));
        gate.wait_until_shut();
        let before = resets();
        let reset = scope.spawn(|| rig.manager.reset_blocking().unwrap());
        eventually("the pool is reset", || resets() > before);
        gate.open();
        reset.join().unwrap();
        assert_eq!(switched.join().unwrap(), 0);
    });
    assert!(rig.manager.lookup(&chain).unwrap().is_empty());
    put(&rig, 1, &chain);
    assert_eq!((get_from_disk(&rig, 1, &chain), switch(&rig, 2)), (4, 0));
    rig.close();
}

#[test]
fn a_hung_drive_hides_its_old_blocks_keeps_nobody_waiting_and_is_read_later() {
    for by_store in [false, true] {
        let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1)));
        let setup = Setup::new(16, 64).volume(drive.clone()).manual();
        let setup = setup.with(|config| config.transfer.deadline_ms = SHORT.as_millis() as u64);
        let rig = under(&setup, 1).open();
        let (old, young) = (hashes(1, 4), hashes(2, 4));
        put(&rig, 1, &old);
        switch(&rig, 2);
        put(&rig, 2, &young);

        drive.stall();
        let start = Instant::now();
        let error = rig.manager.set_weights_version_blocking(&name(1)).unwrap_err();
        assert!(start.elapsed() < SHORT + Duration::from_secs(5));
        assert!(
            matches!(&error, ManagerError::Disk { source: DiskError::Drive { source, .. } }
            if **source == DiskError::Unread),
            "{error}"
        );
        for chain in [&old, &young] {
            assert!(rig.manager.lookup(chain).unwrap().is_empty());
        }
        // Memory works under the version that was asked for.
        assert_eq!(rig.manager.settings().model.revision, Some(name(1)));
        let blocks = compute(&rig, 1, &young);
        let stored = rig.manager.offload(&blocks).unwrap().wait(Some(LONG)).unwrap();
        assert!(stored.iter().all(Result::is_ok), "{stored:?}");
        let to_disk = rig.manager.offload_to(&blocks, Tier::Disk).unwrap();
        let refused = to_disk.wait(Some(LONG)).unwrap();
        let unread = |r: &_| matches!(r, Err(TransferError::Disk(DiskError::Unread)));
        assert!(refused.iter().all(unread), "{refused:?}");
        drop(blocks);
        rig.clear_device();
        assert_eq!(get(&rig, 1, &young), 4);
        rig.clear_memory();

        drive.resume();
        if by_store {
            eventually("stores are taken", || {
                let all = store(&rig, 1, &hashes(3, 2)).iter().all(Result::is_ok);
                rig.clear_memory();
                all
            });
        } else {
            rig.manager.set_weights_version_blocking(&name(1)).unwrap();
        }
        assert_eq!(get_from_disk(&rig, 1, &old), 4);
        assert_eq!(switch(&rig, 2), 4);
        assert_eq!(get_from_disk(&rig, 2, &young), 4);
        assert_eq!(quarantined(&rig), 0);
        rig.close();
    }
}

#[test]
fn what_came_before_a_drive_was_read_goes_down_when_it_has_been() {
    let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1)));
    let setup = under(&Setup::new(16, 64).volume(drive.clone()), 1);
    let rig = setup.with(|c| c.transfer.deadline_ms = SHORT.as_millis() as u64).open();
    drive.stall();
    rig.manager.set_weights_version_blocking(&name(2)).unwrap_err();
    drive.resume();
    let mut chains = 0;
    eventually("the drive is read", || {
        if rig.manager.device().unwrap().available_blocks() > 0 {
            chains += 1;
            drop(compute(&rig, 2, &hashes(chains, 1)));
        }
        rig.manager.status().drives[0].stores
    });
    eventually("nothing waits", || rig.edge(TO_DISK).queue_depth == 0);
    rig.close();
}

#[test]
fn a_table_that_cannot_be_read_is_said_and_read_when_it_can_be() {
    let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1)));
    let rig = under(&Setup::new(0, 64).volume(drive.clone()).manual(), 1).open();
    let chain = hashes(1, 4);
    put(&rig, 1, &chain);
    switch(&rig, 2);
    let (only, code) = (Some(FileOp::Read), libc::EACCES);
    drive.set_faults(Faults { only, code, errors: 1.0, ..Faults::none(1) });
    let error = rig.manager.set_weights_version_blocking(&name(1)).unwrap_err();
    assert!(matches!(error, ManagerError::Disk { .. }), "{error}");
    drive.set_faults(Faults::none(1));
    assert_eq!(switch(&rig, 1), 4);
    assert_eq!(get_from_disk(&rig, 1, &chain), 4);
    rig.close();
}

#[test]
fn switches_race_with_stores_and_loads_and_every_block_is_of_the_version_in_force() {
    let faults = Faults { latency: Duration::from_micros(50), ..Faults::none(7) };
    let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), faults));
    let setup = Setup::new(8, 40).volume(drive);
    let setup = setup.with(|config| config.device.capacity = Capacity::Blocks(96));
    let rig = under(&setup, 0).open();
    // Whoever computes does so with the weights in force; copies know nothing of this.
    let version = RwLock::new(0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for worker in 0..2_u32 {
            let (rig, version, done) = (&rig, &version, &done);
            scope.spawn(move || {
                let mut seed = worker;
                while !done.load(Ordering::Relaxed) {
                    seed = (seed + 3) % 8;
                    let now = version.read().unwrap();
                    let chain = hashes(seed, 4);
                    if worker == 0 {
                        drop(compute(rig, *now, &chain));
                    }
                    get(rig, *now, &chain);
                    drop(now);
                    rig.clear_device();
                }
            });
        }
        for round in 1..120_u32 {
            let mut now = version.write().unwrap();
            *now = round % 3;
            switch(&rig, *now);
            if round % 40 == 0 {
                rig.manager.reset_blocking().unwrap();
            }
            drop(now);
            let chain = hashes(round % 8, 4);
            let now = version.read().unwrap();
            get(&rig, *now, &chain);
            drop(compute(&rig, *now, &hashes(8 + round % 4, 4)));
        }
        done.store(true, Ordering::Relaxed);
    });
    rig.manager.flush_blocking(LONG).unwrap();
    rig.check();
    for version in 0..3 {
        switch(&rig, version);
        for seed in 0..8 {
            get_from_disk(&rig, version, &hashes(seed, 4));
        }
    }
    assert_eq!(quarantined(&rig), 0);
    assert_eq!(rig.manager.host().unwrap().status().quarantined, 0);
    let (stored, loaded) = (rig.edge(TO_DISK), rig.edge(FROM_DISK));
    assert!(stored.blocks > 0 && loaded.blocks > 0 && stored.failures["stale"] > 0, "{stored:?}");
    rig.close();
}

#[test]
fn switches_and_resets_at_the_same_time_leave_a_drive_that_works() {
    let dir = tempfile::tempdir().unwrap();
    let rig = under(&Setup::new(0, 64).dir(dir.path()).manual(), 0).open();
    for round in 0..20 {
        thread::scope(|scope| {
            for version in 0..3 {
                let rig = &rig;
                scope.spawn(move || switch(rig, version));
            }
            scope.spawn(|| rig.manager.reset_blocking().unwrap());
        });
        switch(&rig, 9);
        assert!(rig.manager.lookup(&hashes(1, 4)).unwrap().is_empty() || round > 0);
        put(&rig, 9, &hashes(1, 4));
        assert_eq!(get_from_disk(&rig, 9, &hashes(1, 4)), 4);
    }
    rig.close();
}
