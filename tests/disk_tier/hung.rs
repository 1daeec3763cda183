//! What a drive that is slow or hangs costs: its own blocks, no deadline, and no other tier.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use dynamo_llm::block_manager::{
    Arrival, Tier, TransferError,
    io::{
        Health, HealthOptions, Lane, PsyncOptions,
        fault::{FaultVolume, Faults, MemoryVolume},
    },
};

use super::tools::eventually;
use crate::rig::{LONG, Setup, hashes};

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
fn a_reset_that_waits_for_a_hung_drive_keeps_no_copy_in_memory_waiting() {
    let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1)));
    let rig = Setup::new(32, 64).volume(drive.clone()).manual().open();
    let old = hashes(1, 4);
    assert!(rig.store(&old).iter().all(Result::is_ok));
    drive.stall();
    std::thread::scope(|scope| {
        let reset = scope.spawn(|| rig.manager.reset_blocking());
        eventually("the drive is asked", || drive.hanging() > 0);
        let held = rig.fill(&hashes(2, 4));
        let copied = rig.manager.offload(&held).unwrap().wait(Some(LONG)).unwrap();
        assert_eq!(copied, [const { Ok(Arrival::Copied) }; 4]);
        assert!(!reset.is_finished());
        // Nothing is stored that a restart could not tell from what was before.
        let refused = rig.manager.offload_to(&held, Tier::Disk).unwrap().wait(Some(LONG)).unwrap();
        assert!(
            refused.iter().all(|r| matches!(r, Err(TransferError::Stale { .. }))),
            "{refused:?}"
        );
        drive.resume();
        reset.join().unwrap().unwrap();
    });
    assert!(rig.manager.lookup(&old).unwrap().is_empty());
    let new = hashes(3, 4);
    assert!(rig.store(&new).iter().all(Result::is_ok));
    rig.close();
}
