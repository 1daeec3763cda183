//! What a drive that fails costs: its own blocks, and nothing else.

use std::{sync::Arc, time::Duration};

use dynamo_llm::block_manager::{
    BlockResult, OnboardOptions, TransferError,
    config::Capacity,
    io::{
        FileOp, HealthOptions, IoError, PsyncOptions,
        fault::{FaultVolume, Faults, MemoryVolume},
    },
};

use dynamo_llm::block_manager::storage::disk::DiskError;

use super::tools::{DATA, SLOT, eventually, quarantined};
use crate::gate::GatedVolume;
use crate::rig::{FROM_DISK, LONG, Setup, hashes, is_right};

#[test]
fn a_failed_store_is_reported_and_a_failed_load_is_a_miss_that_is_not_offered_again() {
    let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1)));
    let setup = Setup::new(0, 64).volume(drive.clone()).manual();
    let rig = setup.open();
    let chain = hashes(1, 8);
    let only = |only| Faults { only: Some(only), errors: 1.0, ..Faults::none(1) };

    drive.set_faults(only(FileOp::Write));
    let results = rig.store(&chain[..3]);
    assert!(results.iter().all(|r| matches!(r, Err(TransferError::Disk(_)))), "{results:?}");
    assert_eq!(rig.on_disk(&chain), 0);
    drive.set_faults(Faults::none(1));
    rig.clear_memory();
    assert!(rig.store(&chain).iter().all(Result::is_ok));

    rig.clear_memory();
    drive.set_faults(only(FileOp::Read));
    let arrived = rig.get(&chain);
    assert!(arrived.blocks.is_empty());
    drive.set_faults(Faults::none(1));
    assert!(rig.manager.lookup(&chain).unwrap().is_empty(), "lost blocks are not offered again");
    rig.check();
    rig.manager.shutdown_blocking(LONG);
}

#[test]
fn a_read_only_drive_still_serves_what_it_has() {
    let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1)));
    let rig = Setup::new(32, 64).volume(drive.clone()).open();
    let chain = hashes(1, 8);
    rig.put(&chain);
    rig.clear_memory();
    let (only, code) = (Some(FileOp::Write), libc::EROFS);
    drive.set_faults(Faults { only, code, errors: 1.0, ..Faults::none(1) });
    assert_eq!(rig.get(&chain).blocks.len(), 8);
    for seed in 2..6 {
        drop(rig.fill(&hashes(seed, 8)));
        rig.manager.flush_blocking(LONG).unwrap();
    }
    rig.clear_memory();
    assert_eq!(rig.get(&chain).blocks.len(), 8);
    rig.manager.shutdown_blocking(LONG);
}

#[test]
fn torn_writes_are_found_at_the_first_read() {
    let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1)));
    let setup = Setup::new(0, 256).volume(drive.clone());
    let rig = setup.with(|config| config.model.inner_dim = 1024).open();
    drive.set_faults(Faults { only: Some(FileOp::Write), tears: 0.3, ..Faults::none(3) });
    for seed in 1..12 {
        drop(rig.fill(&hashes(seed, 8)));
        rig.manager.flush_blocking(LONG).unwrap();
    }
    drive.set_faults(Faults::none(1));
    rig.clear_memory();
    let mut arrived = 0;
    for seed in 1..12 {
        // `get` compares every byte.
        arrived += rig.get(&hashes(seed, 8)).blocks.len();
        rig.clear_memory();
    }
    assert!(drive.injected() > 0 && arrived < 88);
    // The drive is well again, and so are the slots.
    assert!(rig.edge(FROM_DISK).failures["verification"] > 0);
    eventually("all slots are in use again", || {
        rig.manager.disk().unwrap().status().mutable == 0 && quarantined(&rig) == 0
    });
    let again = hashes(99, 8);
    rig.put(&again);
    rig.clear_memory();
    assert_eq!(rig.get(&again).blocks.len(), 8);
    rig.check();
    rig.manager.shutdown_blocking(LONG);
}

#[test]
fn a_load_that_fails_hands_out_nothing_of_what_was_there_before() {
    let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1)));
    let setup = Setup::new(0, 64).volume(drive.clone()).manual().with(|config| {
        config.device.capacity = Capacity::Blocks(4);
        config.disk.io_threads = 1;
    });
    let rig = setup.open();
    let (wanted, before) = (hashes(1, 4), hashes(2, 4));
    assert!(rig.store(&wanted).iter().all(Result::is_ok));
    rig.clear_memory();
    // The slots of the device hold other blocks.
    drop(rig.fill(&before));
    drive.damage(DATA, 2 * SLOT..2 * SLOT + 512, false).unwrap();
    let arrived = rig.get(&wanted);
    assert_eq!(arrived.blocks.len(), 2);
    assert!(matches!(arrived.results[2], Err(TransferError::Disk(_))), "{:?}", arrived.results);
    let up = rig.edge(FROM_DISK);
    assert_eq!((up.blocks, up.failures["other"]), (3, 1), "only real copies count");
    let device = rig.manager.device().unwrap();
    assert!(device.match_sequence_hashes_blocking(&wanted[2..3]).unwrap().is_empty());
    for hash in wanted.iter().chain(&before) {
        let found = device.match_sequence_hashes_blocking(&[*hash]).unwrap();
        assert!(found.iter().all(is_right));
    }
    drop(arrived);
    rig.close();
}

#[test]
fn a_failure_of_the_moment_costs_no_block_and_is_not_tried_for_ever() {
    let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1)));
    let rig = Setup::new(0, 64).volume(drive.clone()).manual().open();
    let chain = hashes(1, 8);
    assert!(rig.store(&chain).iter().all(Result::is_ok));
    rig.clear_memory();
    // Too many open files, say: nothing that speaks against a block.
    let (only, code) = (Some(FileOp::Read), libc::EMFILE);
    drive.set_faults(Faults { only, code, errors: 1.0, ..Faults::none(1) });
    let mut tries = 0;
    eventually("the drive has nothing", || {
        tries += 1;
        let found = rig.manager.lookup(&chain).unwrap().len();
        assert!(rig.get(&chain).blocks.is_empty());
        found == 0
    });
    assert!(tries < 10, "{tries}");
    drive.set_faults(Faults::none(1));
    eventually("it has all of it again", || {
        let arrived = rig.get(&chain).blocks.len();
        rig.clear_memory();
        arrived == 8
    });
    rig.close();
}

#[test]
fn a_batch_longer_than_the_queue_of_the_drive_brings_what_was_really_read() {
    let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1)));
    let mut setup = Setup::new(0, 64).volume(drive.clone()).manual();
    let mut io = PsyncOptions::default();
    (io.load_threads, io.store_threads, io.load_queue) = (1, 1, 3);
    setup.io = Some(io);
    let rig = setup.open();
    let (wanted, before) = (hashes(1, 8), hashes(2, 16));
    assert!(rig.store(&wanted).iter().all(Result::is_ok));
    rig.clear_memory();
    drop(rig.fill(&before));
    drive.stall();
    let found = rig.manager.lookup(&wanted).unwrap();
    let begun = rig.manager.start_onboard(found, OnboardOptions::default()).unwrap();
    drive.resume();
    let arrived = begun.wait(Some(LONG)).unwrap();
    let full = |result: &BlockResult| {
        matches!(result, Err(TransferError::Disk(DiskError::Io(IoError::QueueFull { .. }))))
    };
    assert!((3..8).contains(&arrived.len()));
    assert!(arrived.results[arrived.len()..].iter().any(full), "{:?}", arrived.results);
    drop(arrived);
    eventually("nothing is held", || {
        let pools = rig.manager.status().pools;
        pools.values().all(|pool| (pool.active, pool.mutable) == (0, 0))
    });
    // What arrived is right, and the rest comes when it is asked for again.
    eventually("all of it has arrived", || rig.get(&wanted).blocks.len() == 8);
    rig.close();
}

#[test]
fn a_drive_that_takes_no_data_is_found_out_however_well_it_serves() {
    let volume = Arc::new(GatedVolume::new());
    let gate = volume.gate.clone();
    let mut health = HealthOptions::default();
    health.probe_after = Duration::from_secs(3600);
    let mut io = PsyncOptions::default();
    // One thread, so that each note of a use is made before the next store.
    (io.store_threads, io.health) = (1, health);
    let rig = Setup { io: Some(io), ..Setup::new(0, 64).volume(volume).manual() }.open();
    let chain = hashes(1, 8);
    assert!(rig.store(&chain).iter().all(Result::is_ok));
    rig.clear_memory();
    gate.fail(FileOp::Write, ".data");
    let mut failed = 0;
    while rig.manager.status().drives[0].stores {
        assert!(failed < 40, "stores are tried again and again");
        assert!(rig.store(&hashes(2, 1))[0].is_err());
        failed += 1;
        rig.clear_memory();
        assert_eq!(rig.get(&chain).blocks.len(), 8);
        rig.clear_memory();
    }
    assert_eq!(rig.get(&chain).blocks.len(), 8, "loads go on");
    gate.open();
    rig.manager.shutdown_blocking(LONG);
    rig.check();
}
