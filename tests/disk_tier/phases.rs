//! A drive that is well, slow, hung and well again: what an engine asks meanwhile comes back in time.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use dynamo_llm::block_manager::{
    Arrival, OnboardOptions, Registration, SequenceHash, Tier, TransferError,
    config::Capacity,
    io::{
        Health, HealthOptions, Lane, PsyncOptions,
        fault::{FaultVolume, Faults, MemoryVolume},
    },
};

use super::tools::{Seed, eventually};
use crate::rig::{LONG, Rig, Setup, hashes};

/// What a caller grants a load from the drive, and what the settings grant everything else: no copy
/// in memory takes so long.
const DEADLINE: Duration = Duration::from_millis(60);
const PATIENCE: Duration = Duration::from_millis(600);
/// How much later than its deadline a call may return on a machine that is busy otherwise; short
/// beside a drive that never answers.
const SLACK: Duration = Duration::from_secs(5);

struct Bench {
    drive: Arc<FaultVolume>,
    rig: Rig,
    /// On disk alone, and in the host tier too.
    cold: Vec<SequenceHash>,
    warm: Vec<SequenceHash>,
    /// On disk alone, and asked for now and then.
    others: Vec<Vec<SequenceHash>>,
    /// Names that were not used yet.
    next: u32,
}

impl Bench {
    fn new() -> Self {
        let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1)));
        let mut health = HealthOptions::default();
        health.failures = 2;
        // Long beside what a busy machine may take for an operation in memory.
        health.stuck_after = Duration::from_millis(150);
        health.probe_after = Duration::from_millis(200);
        health.probe_at_most = Duration::from_millis(400);
        let mut io = PsyncOptions::default();
        (io.load_threads, io.store_threads, io.health) = (2, 2, health);
        let mut setup = Setup::new(64, 256).volume(drive.clone()).manual().with(|config| {
            config.device.capacity = Capacity::Blocks(128);
            config.transfer.deadline_ms = PATIENCE.as_millis() as u64;
        });
        setup.io = Some(io);
        let rig = setup.open();
        let (cold, warm) = (hashes(1, 8), hashes(2, 8));
        let others: Vec<_> = (3..9).map(|seed| hashes(seed, 4)).collect();
        for chain in others.iter().chain([&cold]) {
            assert!(rig.store(chain).iter().all(Result::is_ok));
        }
        rig.clear_memory();
        let held = rig.fill(&warm);
        let stored = rig.manager.offload(&held).unwrap().wait(Some(LONG)).unwrap();
        assert!(stored.iter().all(Result::is_ok));
        drop(held);
        Self { drive, rig, cold, warm, others, next: 10 }
    }

    fn health(&self, lane: Lane) -> Health {
        let disk = self.rig.manager.disk().unwrap().blocks();
        disk.place().disk().unwrap().drives()[0].health(lane)
    }

    fn new_names(&mut self, blocks: usize) -> Vec<SequenceHash> {
        self.next += 1;
        assert!(self.next < 1 << 16, "the names of the rig are used up");
        hashes(self.next, blocks)
    }

    /// Everything that an engine asks, once; how many of the cold blocks arrived.
    fn calls(&mut self) -> usize {
        let manager = self.rig.manager.clone();
        let (device, host) = (manager.device().unwrap(), manager.host().unwrap());
        for chain in [&self.cold, &self.warm, &hashes(10, 8)] {
            drop(within("lookup", Duration::ZERO, || manager.lookup(chain).unwrap()));
        }
        // What it asks of memory is answered as if there were no drive.
        self.rig.clear_device();
        let warm = within("onboard from the host", PATIENCE, || self.rig.get(&self.warm));
        assert_eq!(warm.blocks.len(), 8, "the host serves");
        drop(warm);
        for pool in [device, host] {
            let name = self.new_names(1);
            let block =
                within("allocate", Duration::ZERO, || pool.allocate_blocks_blocking(1).unwrap());
            let chain = Registration::chain(&name, 0, None);
            let block = within("register", Duration::ZERO, || {
                pool.register_blocks_as(block, &chain).unwrap()
            });
            drop(block);
            let found = within("match", Duration::ZERO, || {
                pool.match_sequence_hashes_blocking(&name).unwrap()
            });
            assert_eq!(found.len(), 1);
        }
        let names = self.new_names(2);
        let held = self.rig.fill(&names);
        let stored = within("offload to the host", PATIENCE, || {
            manager.offload(&held).unwrap().wait(Some(LONG)).unwrap()
        });
        assert_eq!(stored, [const { Ok(Arrival::Copied) }; 2]);

        // What it asks of the drive ends at its deadline, well or not.
        let stored = within("offload to disk", PATIENCE, || {
            manager.offload_to(&held, Tier::Disk).unwrap().wait(Some(LONG)).unwrap()
        });
        let ended = |result: &Result<Arrival, TransferError>| {
            matches!(result, Ok(_) | Err(TransferError::DeadlineExceeded | TransferError::Disk(_)))
        };
        assert!(stored.iter().all(ended), "{stored:?}");
        drop(held);
        let arrived =
            within("onboard from disk", DEADLINE, || self.rig.get_within(&self.cold, DEADLINE));
        let arrived = arrived.blocks.len();
        within("flush", DEADLINE, || manager.flush_blocking(DEADLINE).unwrap());
        let status = within("status", Duration::ZERO, || manager.status());
        assert_eq!(status.pools[&Tier::Disk].capacity, 256);
        arrived
    }
}

/// Calls, and fails when the answer takes much longer than `granted`.
fn within<T>(what: &str, granted: Duration, call: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let answer = call();
    let taken = start.elapsed();
    assert!(taken < granted + SLACK, "{what}: {taken:?}");
    answer
}

#[test]
fn a_drive_that_is_slow_then_hangs_then_is_well_delays_nobody_and_is_used_again() {
    for seed in 1..=3 {
        let _said = Seed(seed);
        let mut bench = Bench::new();
        assert_eq!(bench.calls(), 8);

        // Slow: fewer arrive in time, none is lost.
        let latency = Duration::from_millis(20);
        bench.drive.set_faults(Faults { delays: 0.6, latency, ..Faults::none(seed) });
        for _ in 0..3 {
            bench.calls();
        }
        bench.rig.clear_device();
        eventually("all have come up", || {
            let arrived = bench.rig.get(&bench.cold).blocks.len();
            bench.rig.clear_device();
            arrived == 8
        });

        // Hung: some operations never end, soon no thread is left, and the drive goes sick.
        bench.drive.set_faults(Faults { hangs: 0.4, ..Faults::none(seed) });
        eventually("loads are sick", || {
            bench.calls();
            bench.rig.clear_device();
            // A block that is under way is not asked for twice: it takes others to hang on.
            for chain in &bench.others {
                bench.rig.get_within(chain, Duration::from_millis(5));
            }
            matches!(bench.health(Lane::Load), Health::Sick { .. })
        });
        let mut seen = false;
        eventually("a sick drive has nothing", || {
            bench.rig.clear_device();
            let found = bench.rig.manager.lookup(&bench.cold).unwrap().len();
            // Until it is time for a trial, which a lookup must lead to.
            if let Health::Sick { probe_at, .. } = bench.health(Lane::Load)
                && Instant::now() < probe_at
            {
                assert_eq!(found, 0);
                seen = true;
            }
            seen
        });
        for _ in 0..3 {
            bench.calls();
        }

        // Well again: a trial shows it, and everything is served.
        bench.drive.set_faults(Faults::none(seed));
        bench.drive.resume();
        eventually("loads and stores are well", || {
            let sick = [Lane::Load, Lane::Store].map(|lane| bench.health(lane) != Health::Good);
            bench.rig.clear_device();
            if sick[0] {
                bench.rig.get_within(&bench.cold, DEADLINE);
            }
            if sick[1] {
                let name = bench.new_names(1);
                bench.rig.store(&name);
            }
            sick == [false; 2]
        });
        bench.calls();
        eventually("all of it is served: nothing was lost", || {
            bench.rig.clear_device();
            bench.rig.get(&bench.cold).blocks.len() == 8
        });
        let new = bench.new_names(8);
        eventually("stores arrive", || {
            let stored = bench.rig.store(&new).iter().all(Result::is_ok);
            bench.rig.clear_memory();
            stored
        });
        assert_eq!(bench.rig.get(&new).blocks.len(), 8);
        eventually("nothing is held any more", || {
            let pools = bench.rig.manager.status().pools;
            pools.values().all(|pool| (pool.mutable, pool.active, pool.quarantined) == (0, 0, 0))
        });
        bench.rig.close();
    }
}

#[test]
fn a_shutdown_beside_a_hung_drive_keeps_its_time_and_says_what_was_dropped() {
    let mut bench = Bench::new();
    bench.drive.stall();
    let names = bench.new_names(8);
    let held = bench.rig.fill(&names);
    let storing = bench.rig.manager.offload_to(&held, Tier::Disk).unwrap();
    let report = within("shutdown", DEADLINE, || bench.rig.manager.shutdown_blocking(DEADLINE));
    assert_eq!(report.unfinished, 8);
    let stored = within("the stores", PATIENCE, || storing.wait(Some(LONG)).unwrap());
    assert!(stored.iter().all(Result::is_err), "{stored:?}");
    // What is held stays readable, and goes when the drive lets go.
    assert!(held.iter().all(crate::rig::is_right));
    drop(held);
    let device = bench.rig.manager.device().unwrap().clone();
    bench.drive.resume();
    eventually("the device is free", || device.status().active + device.status().mutable == 0);
}

#[test]
fn a_reset_beside_a_hung_drive_ends_and_what_was_before_it_is_gone() {
    let bench = Bench::new();
    bench.drive.stall();
    let reset = within("reset", DEADLINE, || bench.rig.manager.reset_blocking());
    assert!(reset.is_err(), "the drive has not said that it will last");
    for chain in [&bench.cold, &bench.warm] {
        assert!(bench.rig.manager.lookup(chain).unwrap().is_empty());
    }
    bench.drive.resume();
    let new = hashes(9, 8);
    eventually("the drive takes stores again", || {
        let stored = bench.rig.store(&new).iter().all(Result::is_ok);
        bench.rig.clear_memory();
        stored
    });
    assert!(bench.rig.manager.lookup(&bench.cold).unwrap().is_empty());
    assert_eq!(bench.rig.get(&new).blocks.len(), 8);
}

#[test]
fn fifty_loads_from_a_hung_drive_fail_in_time_and_leave_the_host_alone() {
    let bench = Bench::new();
    let chains: Vec<_> = (20..26).map(|seed| hashes(seed, 8)).collect();
    for chain in &chains {
        assert!(bench.rig.store(chain).iter().all(Result::is_ok));
    }
    bench.rig.clear_device();
    bench.drive.stall();
    let manager = &bench.rig.manager;
    let start = Instant::now();
    let loads: Vec<_> = chains.iter().flatten().chain(&bench.cold[..2]).collect();
    let begun: Vec<_> = loads
        .into_iter()
        .map(|&hash| {
            let deadline = Some(start + DEADLINE);
            let options = OnboardOptions { deadline, ..OnboardOptions::default() };
            manager.start_onboard(manager.lookup(&[hash]).unwrap(), options).unwrap()
        })
        .collect();
    assert_eq!(begun.len(), 50);
    let warm = within("the host", PATIENCE, || bench.rig.get(&bench.warm));
    assert_eq!(warm.blocks.len(), 8);
    for load in begun {
        let arrived = within("a load", DEADLINE, || load.wait(Some(LONG)).unwrap());
        assert!(arrived.is_empty());
    }
    assert!(start.elapsed() < DEADLINE + SLACK);
    within("shutdown", DEADLINE, || manager.shutdown_blocking(DEADLINE));
    bench.drive.resume();
}
