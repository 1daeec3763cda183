//! What a drive that lies, fails, hangs or fills up costs: its own blocks, and nothing else.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use dynamo_llm::block_manager::{
    Tier, TransferError,
    io::{
        FileOp, Health, HealthOptions, Lane, PsyncOptions,
        fault::{FaultVolume, Faults, MemoryVolume},
    },
};

use crate::rig::{FROM_DISK, LONG, Rig, Setup, hashes};

/// Bytes of a slot of the blocks here: payload and sums, a page each.
const SLOT: u64 = 8192;

fn file(dir: &Path, ending: &str) -> PathBuf {
    let mut files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    files.find(|path| path.to_string_lossy().ends_with(ending)).unwrap()
}

fn change(path: &Path, offset: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

fn eventually(what: &str, there: impl Fn() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < LONG, "waited in vain until {what}");
        thread::yield_now();
    }
}

fn quarantined(rig: &Rig) -> u64 {
    rig.manager.disk().unwrap().status().quarantined
}

#[test]
fn a_flipped_bit_is_a_miss_never_served_and_not_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(0, 16).dir(dir.path());
    let chain = hashes(1, 6);
    let rig = setup.open();
    rig.put(&chain);
    rig.close();
    let walked = slot_of(dir.path(), 2);
    change(&file(dir.path(), ".data"), walked * SLOT + 100);

    let rig = setup.open();
    assert_eq!(rig.manager.lookup(&chain).unwrap().len(), 6, "a candidate until it was read");
    let arrived = rig.get(&chain);
    assert_eq!(arrived.blocks.len(), 2);
    assert!(matches!(
        arrived.results[2],
        Err(TransferError::VerificationFailed { tier: Tier::Disk, .. })
    ));
    assert_eq!((quarantined(&rig), rig.edge(FROM_DISK).failures["verification"]), (1, 1));
    // The verdict is withdrawn: nobody is sent there again.
    drop(arrived);
    rig.clear_memory();
    assert_eq!(rig.manager.lookup(&chain).unwrap().len(), 2);
    rig.close();
    let rig = setup.open();
    assert_eq!(rig.manager.lookup(&chain).unwrap().len(), 2);
    rig.close();
}

/// The slot of the `position`th block by order of storing.
fn slot_of(dir: &Path, position: usize) -> u64 {
    let mut slots = Vec::new();
    dynamo_llm::block_manager::storage::disk::walk(dir, |slot, _| {
        slots.push((slot.block.sequence, u64::from(slot.block.slot.slot)));
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    slots.sort_unstable();
    slots[position].1
}

#[test]
fn a_data_file_cut_short_costs_the_blocks_that_were_there() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(0, 16).dir(dir.path());
    let chain = hashes(1, 6);
    let rig = setup.open();
    rig.put(&chain);
    rig.clear_memory();
    let cut = fs::OpenOptions::new().write(true).open(file(dir.path(), ".data")).unwrap();
    cut.set_len(3 * SLOT).unwrap();
    let arrived = rig.get(&chain).blocks.len();
    assert!(arrived < 6);
    rig.clear_memory();
    assert!(rig.manager.lookup(&chain).unwrap().len() < 6, "withdrawn");
    rig.close();
    let rig = setup.open();
    assert!(rig.get(&chain).blocks.len() <= arrived);
    rig.put(&hashes(2, 6));
    rig.clear_memory();
    assert_eq!(rig.get(&hashes(2, 6)).blocks.len(), 6);
    rig.close();
}

#[test]
fn files_removed_behind_its_back_cost_no_more_than_what_was_in_them() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(0, 16).dir(dir.path());
    let chain = hashes(1, 6);
    let rig = setup.open();
    rig.put(&chain);
    rig.clear_memory();
    fs::remove_dir_all(dir.path()).unwrap();
    assert_eq!(rig.get(&chain).blocks.len(), 6);
    rig.put(&hashes(2, 6));
    rig.close();
    let rig = setup.open();
    assert!(rig.manager.lookup(&chain).unwrap().is_empty());
    rig.close();
}

#[test]
fn torn_records_and_a_damaged_superblock_are_no_blocks_and_no_obstacle() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(0, 16).dir(dir.path());
    let chain = hashes(1, 6);
    let rig = setup.open();
    rig.put(&chain);
    rig.close();
    let torn = slot_of(dir.path(), 4);
    change(&file(dir.path(), ".table"), torn * 256 + 60);
    // One copy of two.
    change(&file(dir.path(), ".super"), 40);
    let rig = setup.open();
    assert_eq!(rig.get(&chain).blocks.len(), 4);
    rig.close();
    let len = fs::metadata(file(dir.path(), ".super")).unwrap().len();
    for offset in (0..len).step_by(64) {
        change(&file(dir.path(), ".super"), offset);
    }
    let rig = setup.open();
    assert!(rig.manager.lookup(&chain).unwrap().is_empty());
    rig.put(&chain);
    rig.close();
    assert_eq!(setup.open().get(&chain).blocks.len(), 6);
}

#[test]
fn a_full_drive_costs_the_blocks_that_do_not_fit() {
    let drive = MemoryVolume::new();
    let setup = Setup::new(32, 64).volume(Arc::new(drive.clone()));
    let rig = setup.open();
    rig.put(&hashes(1, 8));
    drive.set_capacity(drive.used() + 2 * SLOT);
    for seed in 2..12 {
        drop(rig.fill(&hashes(seed, 8)));
        rig.manager.flush_blocking(LONG).unwrap();
    }
    rig.check();
    // What is said to be there is there, and the tiers above never noticed.
    assert_eq!(rig.get(&hashes(11, 8)).blocks.len(), 8);
    rig.clear_memory();
    for seed in 1..12 {
        let said = rig.manager.lookup(&hashes(seed, 8)).unwrap().len();
        assert_eq!(rig.get(&hashes(seed, 8)).blocks.len(), said);
        rig.clear_memory();
    }
    rig.manager.shutdown_blocking(LONG);
}

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
    let lost = quarantined(&rig) as usize;
    assert!(lost > 0);
    assert_eq!(rig.manager.disk().unwrap().blocks().scrub(), (lost, 0));
    let again = hashes(99, 8);
    rig.put(&again);
    rig.clear_memory();
    assert_eq!(rig.get(&again).blocks.len(), 8);
    rig.check();
    rig.manager.shutdown_blocking(LONG);
}

#[test]
fn a_hung_drive_costs_its_own_blocks_and_no_deadline_and_comes_back() {
    let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1)));
    let mut setup = Setup::new(32, 64).volume(drive.clone());
    let mut health = HealthOptions::default();
    health.failures = 2;
    health.stuck_after = Duration::from_millis(30);
    health.probe_after = Duration::from_millis(30);
    let mut io = PsyncOptions::default();
    (io.load_threads, io.store_threads, io.health) = (2, 2, health);
    setup.io = Some(io);
    let rig = setup.open();
    let (cold, warm) = (hashes(1, 8), hashes(2, 8));
    rig.put(&cold);
    rig.clear_memory();
    rig.put(&warm);

    drive.stall();
    let start = Instant::now();
    let time = Duration::from_millis(100);
    assert!(rig.get_within(&cold, time).blocks.is_empty());
    // Generous beside the deadline, short beside a drive that never answers.
    assert!(start.elapsed() < time + Duration::from_secs(5));
    let disk = rig.manager.disk().unwrap().blocks().clone();
    let health = |lane| disk.place().disk().unwrap().drives()[0].health(lane);
    eventually("the drive is sick", || matches!(health(Lane::Load), Health::Sick { .. }));
    // Everything else goes on: memory serves, and new blocks are taken.
    assert_eq!(rig.get(&warm).blocks.len(), 8);
    rig.clear_device();
    assert_eq!(rig.get(&warm).blocks.len(), 8);
    drop(rig.fill(&hashes(3, 8)));

    drive.resume();
    rig.clear_memory();
    eventually("the drive is tried again", || {
        rig.get(&cold);
        rig.clear_device();
        health(Lane::Load) == Health::Good
    });
    rig.manager.flush_blocking(LONG).unwrap();
    rig.clear_memory();
    assert_eq!(rig.get(&cold).blocks.len(), 8);
    // And a manager that is closed over a hung drive comes back, and says how it is until then.
    drive.stall();
    drop(rig.fill(&hashes(4, 8)));
    let place = rig.manager.disk().unwrap().blocks().place().clone();
    assert!(rig.manager.status().pools[&Tier::Disk].capacity == 64);
    assert!(place.disk().unwrap().used() > 0);
    let start = Instant::now();
    rig.manager.shutdown_blocking(Duration::from_millis(100));
    drop(rig);
    assert!(start.elapsed() < Duration::from_secs(5));
    drive.resume();
}

#[test]
fn a_host_tier_full_of_blocks_in_use_starves_no_load() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Setup::new(8, 64).dir(dir.path()).open();
    let (cold, held) = (hashes(1, 8), hashes(2, 8));
    rig.put(&cold);
    rig.clear_memory();
    rig.put(&held);
    let host = rig.manager.host().unwrap();
    let pinned = host.match_sequence_hashes_blocking(&held).unwrap();
    assert_eq!((pinned.len(), host.available_blocks()), (8, 0));
    rig.clear_device();
    assert_eq!(rig.get(&cold).blocks.len(), 8);
    drop(pinned);
}
