//! After a reset nothing old is found, and a follower of the events knows what is there.

#![allow(clippy::unwrap_used)]

mod rig;

use std::{collections::BTreeSet, sync::Arc};

use dynamo_llm::block_manager::{
    Arrival, EvictionMode, Tier, TransferError, config::OffloadPolicy,
};
use rig::{LONG, Log, Rig, assert_bytes, hashes, is_right, options, settled};

#[test]
fn after_a_reset_nothing_old_is_found_whatever_was_on_its_way() {
    let log: Arc<Log> = Arc::default();
    let rig = Rig::with(16, 32, OffloadPolicy::Manual, |b| b.event_manager(log.clone()));
    let (stored, storing, loading) = (hashes(1, 3), hashes(2, 3), hashes(3, 3));
    rig.put(&stored);
    rig.put(&loading);
    rig.clear_device();
    let held = rig.fill(&storing);
    rig.store.stall();
    rig.load.stall();
    let down = rig.manager.offload(&held).unwrap();
    let up = rig.manager.start_onboard(rig.lookup(&loading), options()).unwrap();
    let stale_match = rig.lookup(&stored);

    let report = rig.manager.reset_blocking().unwrap();
    assert_eq!(report.held[&Tier::Device], 3 + 3, "three blocks held, three slots under copies");
    assert!(report.held[&Tier::Host] > 0);

    rig.store.resume();
    rig.load.resume();
    let is_stale = |result: &_| matches!(result, Err(TransferError::Stale { .. }));
    assert!(settled(down).iter().all(is_stale));
    let up = up.wait(Some(LONG)).unwrap();
    assert!(up.is_empty() && up.results.iter().all(is_stale));
    // Neither does a match from before bring anything back, nor a block that is still held.
    let old = rig.manager.onboard_blocking(stale_match, options()).unwrap();
    assert!(old.blocks.is_empty() && old.results.iter().all(is_stale));
    assert!(settled(rig.manager.offload(&held).unwrap()).iter().all(is_stale));
    for hashes in [&stored, &storing, &loading] {
        assert_eq!(rig.lookup(hashes).len(), 0);
        assert!(hashes.iter().all(|hash| rig.lookup(&[*hash]).is_empty()));
    }
    assert_bytes(&held);
    assert_eq!(log.count("cleared"), 2);
    drop(held);
    rig.settle();
    rig.assert_idle();
    // New blocks of the same names are new blocks.
    rig.put(&storing);
    rig.clear_device();
    assert_eq!(rig.get(&storing).blocks.len(), 3);
}

#[test]
fn a_block_registered_after_a_reset_does_not_share_a_copy_from_before() {
    let rig = Rig::manual(8, 16);
    let wanted = hashes(1, 2);
    rig.store.stall();
    let old = rig.fill(&wanted);
    let before = rig.manager.offload(&old).unwrap();
    rig.manager.reset_blocking().unwrap();
    let new = rig.fill(&wanted);
    let after = rig.manager.offload(&new).unwrap();
    rig.store.resume();
    assert!(settled(before).iter().all(Result::is_err));
    assert_eq!(settled(after), [const { Ok(Arrival::Copied) }; 2]);
    assert_eq!(rig.present(Tier::Host, &wanted), 2);
}

#[test]
fn resets_race_with_stores_and_loads_and_nothing_old_survives() {
    let rig = Rig::new(32, 64);
    let rounds = 60;
    for round in 0..rounds {
        let wanted = hashes(round, 8);
        let go = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            drop(rig.fill(&wanted));
            scope.spawn(|| {
                go.wait();
                let found = rig.lookup(&wanted);
                let slots = rig.manager.onboard_slots(found, options());
                drop(slots);
            });
            scope.spawn(|| {
                go.wait();
                rig.clear_device();
                drop(rig.manager.onboard_slots(rig.lookup(&wanted), options()));
            });
            go.wait();
            rig.manager.reset_blocking().unwrap();
            // Whatever is still on its way is of the past.
            assert!(wanted.iter().all(|hash| rig.lookup(&[*hash]).is_empty()));
        });
        rig.settle();
        assert!(wanted.iter().all(|hash| rig.lookup(&[*hash]).is_empty()), "round {round}");
    }
    rig.assert_idle();
}

#[test]
fn a_follower_of_the_events_knows_each_tier_at_every_step() {
    let log: Arc<Log> = Arc::default();
    let rig = Rig::with(4, 8, OffloadPolicy::Manual, |b| b.event_manager(log.clone()));
    let wanted = hashes(1, 4);
    let all: BTreeSet<_> = wanted.iter().copied().collect();
    let knows = |device: bool, host: bool| {
        let expected = |there| if there { all.clone() } else { BTreeSet::new() };
        assert_eq!(log.resident(Tier::Device), expected(device));
        assert_eq!(log.resident(Tier::Host), expected(host));
    };
    let held = rig.fill(&wanted);
    knows(true, false);
    settled(rig.manager.offload(&held).unwrap());
    drop(held);
    knows(true, true);
    rig.clear_device();
    knows(false, true);
    drop(rig.get(&wanted));
    knows(true, true);
    rig.manager.host().unwrap().trigger_eviction_blocking(EvictionMode::Aggressive).unwrap();
    knows(true, false);
    rig.clear_device();
    knows(false, false);
    drop(rig.fill(&wanted));
    rig.manager.device().unwrap().reset_blocking().unwrap();
    knows(false, false);
    assert!(rig.lookup(&wanted).is_empty());
}

#[test]
fn large_blocks_are_sealed_in_tiles_and_come_back_whole() {
    let rig = Rig::large();
    let wanted = hashes(1, 3);
    rig.put(&wanted);
    rig.clear_device();
    let arrived = rig.get(&wanted);
    assert!(arrived.blocks.iter().all(is_right));
    let host = rig.manager.host().unwrap();
    assert!(host.blocks().tiling().tiles_per_region() > 1);
    let held = host.match_slots(&wanted.iter().copied().map(Into::into).collect::<Vec<_>>());
    assert_eq!(host.blocks().verify(&held.unwrap()).unwrap(), [true; 3]);
}
