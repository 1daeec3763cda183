//! Engines that fail, corrupt, delay and hang: what is handed out is right or it is not handed out.

#![allow(clippy::unwrap_used)]

mod rig;

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use dynamo_llm::block_manager::{
    Arrival, KvManagerLayoutConfig, KvManagerModelConfig, OnboardOptions, StorageError, Tier,
    TransferError,
    config::{Config, OffloadPolicy},
    storage::{Storage, StorageType, SystemStorage},
    transfer::{Corruption, Faults, HostEngine, Job, TransferEngine},
};
use proptest::prelude::*;
use rig::{
    DOWN, LONG, PAGE, Rig, UP, assert_bytes, eventually, hashes, is_right, options, settled,
};

// ---- errors and corruption ----------------------------------------------------------------------

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

    /// A store is corrupted where it rests and a load on its way: these are what sums can tell.
    #[test]
    fn nothing_that_is_handed_out_is_wrong(
        seed: u64,
        errors in 0.0..0.3,
        corrupt in 0.0..0.4,
        latency_us in prop_oneof![Just(0_u64), 1..200_u64],
    ) {
        let rig = Rig::manual(12, 24);
        let faults = |corruption| Faults {
            errors,
            flips: corrupt,
            tears: corrupt,
            corruption,
            latency: Duration::from_micros(latency_us),
            ..Faults::none(seed)
        };
        rig.store.set_faults(faults(Corruption::AtRest));
        rig.load.set_faults(faults(Corruption::InTransit));
        for round in 0..6_u32 {
            let wanted = hashes(round % 4, 4);
            let held = rig.fill(&wanted);
            let stored = settled(rig.manager.offload(&held).unwrap());
            for (result, hash) in stored.iter().zip(&wanted) {
                prop_assert_eq!(result.is_ok(), rig.present(Tier::Host, &[*hash]) == 1);
            }
            drop(held);
            rig.clear_device();
            let found = rig.lookup(&wanted).len();
            let arrived = rig.manager.onboard_blocking(rig.lookup(&wanted), options()).unwrap();
            prop_assert!(arrived.blocks.iter().all(is_right));
            prop_assert_eq!(arrived.results.len(), found);
            let prefix = arrived.results.iter().take_while(|result| result.is_ok()).count();
            prop_assert_eq!(arrived.blocks.len(), prefix);
            // What failed verification is a miss from now on, and the next lookup says so.
            let failed = |result: &Result<_, _>| {
                matches!(result, Err(TransferError::VerificationFailed { .. }))
            };
            if let Some(first) = arrived.results.iter().position(failed) {
                prop_assert_eq!(rig.present(Tier::Host, &wanted[first..=first]), 0);
                prop_assert!(rig.lookup(&wanted).len() <= first.max(prefix));
            }
            drop(arrived);
            rig.assert_idle();
        }
        let failures = rig.manager.status().edges[&UP].failures["verification"];
        let host = rig.manager.host().unwrap();
        prop_assert_eq!(host.status().quarantined, failures);
        // The memory is sound: every slot goes back into service.
        rig.store.set_faults(Faults::none(seed));
        rig.load.set_faults(Faults::none(seed));
        prop_assert_eq!(host.blocks().scrub(), (failures as usize, 0));
        prop_assert_eq!(host.status().quarantined, 0);
        rig.put(&hashes(9, 12));
        rig.clear_device();
        prop_assert_eq!(rig.get(&hashes(9, 12)).blocks.len(), 12);
        rig.assert_idle();
    }
}

#[test]
fn a_failed_load_is_named_counted_and_not_registered() {
    let rig = Rig::manual(4, 8);
    // What the slots held before must not be taken for what was asked.
    drop(rig.fill(&hashes(9, 4)));
    let wanted = hashes(1, 4);
    rig.put(&wanted);
    rig.clear_device();
    // A seed that fails the third copy alone.
    let third_alone = |seed: &u64| {
        let probe = Rig::manual(4, 8);
        probe.put(&wanted);
        probe.clear_device();
        probe.load.set_faults(Faults { errors: 0.3, ..Faults::none(*seed) });
        let results = probe.get(&wanted).results;
        results.iter().map(Result::is_ok).eq([true, true, false, true])
    };
    let seed = (0..1000).find(third_alone).unwrap();
    rig.load.set_faults(Faults { errors: 0.3, ..Faults::none(seed) });
    let arrived = rig.get(&wanted);
    assert_eq!(arrived.blocks.len(), 2);
    assert!(matches!(arrived.results[2], Err(TransferError::Injected { copy: 2, .. })));
    let up = rig.manager.status().edges[&UP].clone();
    assert_eq!((up.blocks, up.failures["other"]), (3, 1));
    assert_eq!(rig.present(Tier::Device, &wanted), 2);
    assert_eq!(rig.present(Tier::Device, &wanted[2..3]), 0);
    drop(arrived);
    // A failure on the way says nothing about the block: the next try brings it.
    rig.load.set_faults(Faults::none(0));
    assert_eq!(rig.get(&wanted).blocks.len(), 4);
}

#[test]
fn a_block_that_fails_verification_is_a_shorter_prefix_from_then_on() {
    let rig = Rig::manual(8, 16);
    let wanted = hashes(1, 5);
    let held = rig.fill(&wanted);
    settled(rig.manager.offload(&held[..2]).unwrap());
    let rot = Faults { flips: 1.0, corruption: Corruption::AtRest, ..Faults::none(3) };
    rig.store.set_faults(rot);
    settled(rig.manager.offload(&held[2..3]).unwrap());
    rig.store.set_faults(Faults::none(0));
    settled(rig.manager.offload(&held[3..]).unwrap());
    drop(held);
    rig.clear_device();
    assert_eq!(rig.lookup(&wanted).len(), 5, "a candidate until it is read");
    let arrived = rig.get(&wanted);
    assert_eq!(arrived.blocks.len(), 2);
    assert!(matches!(
        arrived.results[2],
        Err(TransferError::VerificationFailed { tier: Tier::Host, .. })
    ));
    drop(arrived);
    rig.clear_device();
    assert_eq!(rig.lookup(&wanted).len(), 2);
    // It can be computed and stored again.
    let again = rig.fill(&wanted);
    settled(rig.manager.offload(&again).unwrap());
    drop(again);
    rig.clear_device();
    assert_eq!(rig.get(&wanted).blocks.len(), 5);
}

// ---- engines that hang --------------------------------------------------------------------------

fn impatient(milliseconds: u64) -> Rig {
    Rig::with(8, 16, OffloadPolicy::Manual, |builder| {
        let mut settings = Config::default();
        settings.offload.policy = OffloadPolicy::Manual;
        settings.transfer.deadline_ms = milliseconds;
        let model = KvManagerModelConfig::builder().num_layers(3).page_size(PAGE).inner_dim(40);
        builder.settings(settings).model(model.build())
    })
}

#[test]
fn a_hung_lane_ends_calls_at_their_deadline_and_leaves_the_other_alone() {
    let rig = impatient(250);
    let (up, down) = (hashes(1, 2), hashes(2, 2));
    rig.put(&up);
    rig.clear_device();
    rig.load.stall();
    let start = Instant::now();
    let arrived = rig.manager.onboard_blocking(rig.lookup(&up), options()).unwrap();
    assert!(arrived.blocks.is_empty() && start.elapsed() < LONG / 2);
    assert_eq!(arrived.results, [const { Err(TransferError::DeadlineExceeded) }; 2]);
    rig.put(&down);
    // Its own deadline can be nearer still.
    let deadline = Some(Instant::now());
    let soon = OnboardOptions { deadline, ..options() };
    assert!(rig.manager.onboard_slots(rig.lookup(&up), soon).unwrap().is_empty());
    rig.load.resume();
    rig.assert_idle();

    rig.store.stall();
    let held = rig.fill(&hashes(3, 2));
    let late = settled(rig.manager.offload(&held).unwrap());
    assert_eq!(late, [const { Err(TransferError::DeadlineExceeded) }; 2]);
    rig.clear_device();
    assert_eq!(rig.get(&up).blocks.len(), 2);
    drop(held);
    rig.store.resume();
    rig.assert_idle();
}

#[test]
fn aborted_loads_of_a_hung_engine_give_everything_back_when_it_ends() {
    let rig = Rig::manual(8, 16);
    let wanted = hashes(1, 2);
    rig.put(&wanted);
    rig.clear_device();
    rig.load.stall();
    for _ in 0..8 {
        // All wait for the same two copies, so the pool is not exhausted by trying again.
        drop(rig.manager.start_onboard(rig.lookup(&wanted), options()).unwrap());
    }
    assert_eq!(rig.manager.device().unwrap().status().mutable, 2);
    rig.load.resume();
    rig.assert_idle();
    assert_eq!(rig.manager.device().unwrap().available_blocks(), 8);
}

#[test]
fn shutdown_keeps_its_timeout_and_says_what_was_left() {
    let rig = Rig::new(8, 16);
    rig.store.stall();
    let held = rig.fill(&hashes(1, 3));
    let start = Instant::now();
    let report = rig.manager.shutdown_blocking(Duration::from_millis(20));
    assert!(start.elapsed() < LONG / 2);
    assert_eq!(report.unfinished, 3);
    assert_eq!(report.by_edge, BTreeMap::from([(DOWN, 3)]));
    assert_bytes(&held);
    rig.store.resume();
    assert_eq!(rig.manager.shutdown_blocking(LONG).unfinished, 0);
}

#[test]
fn shutdown_flushes_what_it_can() {
    let rig = Rig::new(64, 128);
    let held = rig.fill(&hashes(1, 60));
    assert_eq!(rig.manager.shutdown_blocking(LONG).unfinished, 0);
    assert_eq!(rig.manager.status().pools[&Tier::Host].inactive, 60);
    drop(held);
}

/// Memory whose end can be seen.
#[derive(Debug)]
struct Watched(SystemStorage);

// SAFETY: every answer is that of the storage inside.
#[allow(unsafe_code)]
unsafe impl Storage for Watched {
    fn storage_type(&self) -> StorageType {
        self.0.storage_type()
    }

    fn addr(&self) -> u64 {
        self.0.addr()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    unsafe fn as_ptr(&self) -> *const u8 {
        // SAFETY: the caller keeps the same promise.
        unsafe { self.0.as_ptr() }
    }

    unsafe fn as_mut_ptr(&self) -> *mut u8 {
        // SAFETY: the caller keeps the same promise.
        unsafe { self.0.as_mut_ptr() }
    }
}

fn watched() -> (Rig, Weak<Watched>) {
    let memory = Arc::new(Watched(SystemStorage::new(1 << 20).unwrap()));
    let weak = Arc::downgrade(&memory);
    let storage: Vec<Arc<dyn Storage>> = vec![memory];
    let host = KvManagerLayoutConfig::builder().num_blocks(16).storage(storage).build();
    let rig = Rig::with(8, 16, OffloadPolicy::Manual, |builder| builder.host_layout(host.clone()));
    drop(host);
    (rig, weak)
}

#[test]
fn memory_under_a_hung_copy_lives_until_the_engine_lets_go() {
    let (rig, memory) = watched();
    let wanted = hashes(1, 2);
    rig.put(&wanted);
    rig.clear_device();
    rig.store.stall();
    rig.load.stall();
    let down = rig.manager.offload(&rig.fill(&hashes(2, 2))).unwrap();
    let up = rig.manager.start_onboard(rig.lookup(&wanted), options()).unwrap();
    let Rig { manager, load, store } = rig;
    let start = Instant::now();
    drop(manager);
    assert!(start.elapsed() < LONG / 2);
    // Nobody is left who could publish: callers know at once.
    assert_eq!(settled(down), [const { Err(TransferError::EngineStopped) }; 2]);
    assert!(up.wait(Some(LONG)).unwrap().is_empty());
    assert!(memory.upgrade().is_some());
    store.resume();
    load.resume();
    eventually("the memory is unmapped", || memory.upgrade().is_none());
}

#[test]
fn dropping_everything_while_an_engine_hangs_leaks_nothing() {
    let (rig, memory) = watched();
    let wanted = hashes(1, 2);
    rig.put(&wanted);
    rig.clear_device();
    rig.store.stall();
    rig.load.stall();
    drop(rig.manager.offload(&rig.fill(&hashes(2, 2))).unwrap());
    drop(rig.manager.start_onboard(rig.lookup(&wanted), options()).unwrap());
    drop(rig);
    eventually("the memory is unmapped", || memory.upgrade().is_none());
}

#[test]
fn blocks_outlive_their_manager() {
    let (rig, memory) = watched();
    let wanted = hashes(1, 2);
    rig.put(&wanted);
    rig.clear_device();
    let blocks = rig.get(&wanted).blocks;
    let host = rig.manager.host().unwrap().match_sequence_hashes_blocking(&wanted).unwrap();
    drop(rig);
    assert_bytes(&blocks);
    assert_bytes(&host);
    assert!(memory.upgrade().is_some());
    drop((blocks, host));
    eventually("the memory is unmapped", || memory.upgrade().is_none());
}

// ---- engines that break their contract ----------------------------------------------------------

/// Loses every job.
struct Careless;

// SAFETY: it touches no slot at all.
#[allow(unsafe_code)]
unsafe impl TransferEngine for Careless {
    fn name(&self) -> &'static str {
        "careless"
    }

    fn submit(&self, job: Job) -> Result<(), (TransferError, Job)> {
        drop(job);
        Ok(())
    }
}

/// Says it has copied, at once and with no sums.
struct Boastful;

// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl TransferEngine for Boastful {
    fn name(&self) -> &'static str {
        "boastful"
    }

    fn submit(&self, job: Job) -> Result<(), (TransferError, Job)> {
        for index in (0..job.plan().pairs().len() + 3).rev() {
            job.report(index, Ok(Box::default()));
        }
        Ok(())
    }
}

fn with_store(store: Arc<dyn TransferEngine>, policy: OffloadPolicy) -> Rig {
    let load = Arc::new(HostEngine::new("load", 1, 64));
    Rig::with(32, 64, policy, |builder| builder.engines(load, store))
}

#[test]
fn a_job_that_an_engine_loses_is_a_failure_and_not_a_wait() {
    let rig = with_store(Arc::new(Careless), OffloadPolicy::Manual);
    let held = rig.fill(&hashes(1, 3));
    let results = settled(rig.manager.offload(&held).unwrap());
    assert_eq!(results, [const { Err(TransferError::EngineStopped) }; 3]);
    drop(held);
    rig.assert_idle();
    // The queue is not stuck behind it either.
    let rig = with_store(Arc::new(Careless), OffloadPolicy::WriteThrough);
    for seed in 0..10 {
        drop(rig.fill(&hashes(seed, 32)));
    }
    assert_eq!(rig.manager.flush_blocking(LONG).unwrap(), 0);
    rig.assert_idle();
}

#[test]
fn a_copy_without_sums_is_no_copy() {
    let rig = with_store(Arc::new(Boastful), OffloadPolicy::Manual);
    let wanted = hashes(1, 3);
    let held = rig.fill(&wanted);
    let results = settled(rig.manager.offload(&held).unwrap());
    let expected = 3 * 2;
    let wrong = TransferError::WrongSums { engine: "boastful".to_owned(), found: 0, expected };
    assert!(results.iter().all(|result| *result == Err(wrong.clone())), "{results:?}");
    assert_eq!(rig.present(Tier::Host, &wanted), 0);
    drop(held);
    rig.assert_idle();
}

#[test]
fn memory_without_bytes_is_refused_and_not_read() {
    use dynamo_llm::block_manager::storage::NullAllocator;
    let host =
        KvManagerLayoutConfig::builder().num_blocks(16).allocator(Arc::new(NullAllocator)).build();
    let rig = Rig::with(8, 16, OffloadPolicy::Manual, |builder| builder.host_layout(host));
    let refused =
        TransferError::Storage(StorageError::NotAccessible { storage: StorageType::Null });
    let held = rig.fill(&hashes(1, 2));
    for corrupt in [0.0, 1.0] {
        rig.store.set_faults(Faults { flips: corrupt, tears: corrupt, ..Faults::none(0) });
        let results = settled(rig.manager.offload(&held).unwrap());
        assert!(results.iter().all(|result| *result == Err(refused.clone())), "{results:?}");
    }
    let host = rig.manager.host().unwrap();
    let block = host.allocate_blocks_blocking(1).unwrap();
    assert!(block[0].layer_view(0, 0).is_err() && block[0].block_view().is_err());
    let names = dynamo_llm::block_manager::Registration::chain(&hashes(2, 1), 0, None);
    let block = host.register_blocks_as(block, &names).unwrap();
    assert!(block[0].block_view().is_err());
    let slots = host.match_slots(&[hashes(2, 1)[0].into()]).unwrap();
    assert_eq!(host.blocks().verify(&slots), Err(refused));
    drop(block);
    slots.quarantine();
    assert_eq!(host.blocks().scrub(), (0, 1));
}

#[test]
fn latency_delays_and_nothing_more() {
    let rig = Rig::manual(8, 16);
    let latency = Duration::from_millis(3);
    rig.load.set_faults(Faults { latency, ..Faults::none(0) });
    rig.store.set_faults(Faults { latency, ..Faults::none(0) });
    let wanted = hashes(1, 4);
    let start = Instant::now();
    rig.put(&wanted);
    assert!(start.elapsed() >= latency);
    rig.clear_device();
    let arrived = rig.get(&wanted);
    assert_eq!(arrived.results, [const { Ok(Arrival::Copied) }; 4]);
    // Longer than time itself is no wait at all.
    rig.clear_device();
    rig.store.set_faults(Faults { latency: Duration::MAX, ..Faults::none(0) });
    rig.put(&hashes(2, 1));
}
