//! The way up: what comes where, when, and what happens to the slots.

#![allow(clippy::unwrap_used)]

mod rig;

use std::time::{Duration, Instant};

use dynamo_llm::block_manager::{
    Arrival, Identity, OnboardOptions, Tier, TransferError, transfer::Faults,
};
use rig::{LONG, PAGE, Rig, UP, assert_bytes, edge, hashes, options, write};

#[test]
fn a_matched_prefix_goes_into_the_head_of_the_given_slots() {
    let rig = Rig::manual(4, 8);
    let wanted = hashes(1, 2);
    rig.put(&wanted);
    rig.clear_device();
    let device = rig.manager.device().unwrap();
    let slots = device.allocate_slots(2).unwrap();
    let ids = slots.ids().to_vec();
    let into = Some(slots);
    let arrived = rig
        .manager
        .onboard_blocking(rig.lookup(&wanted), OnboardOptions { into, ..options() })
        .unwrap();
    assert_eq!(
        arrived
            .blocks
            .iter()
            .map(dynamo_llm::block_manager::ImmutableBlock::block_id)
            .collect::<Vec<_>>(),
        ids[..2]
    );
    assert!(arrived.unused.is_empty());
    assert_bytes(&arrived.blocks);
}

#[test]
fn slots_that_are_not_needed_come_back_untouched() {
    let rig = Rig::manual(6, 8);
    let wanted = hashes(1, 2);
    rig.put(&wanted);
    rig.clear_device();
    // A block of ours in each slot tells whether it was touched.
    let device = rig.manager.device().unwrap();
    let mark = hashes(9, 1)[0];
    let mut marked = device.allocate_blocks_blocking(6).unwrap();
    for block in &mut marked {
        write(block, mark);
    }
    drop(marked);
    let into = device.allocate_slots(3).unwrap();
    let ids = into.ids().to_vec();
    let options = OnboardOptions { into: Some(into), ..options() };
    let arrived = rig.manager.onboard_blocking(rig.lookup(&wanted), options).unwrap();
    assert_eq!(
        arrived
            .blocks
            .iter()
            .map(dynamo_llm::block_manager::ImmutableBlock::block_id)
            .collect::<Vec<_>>(),
        ids[..2]
    );
    assert_bytes(&arrived.blocks);
    let [unused] = &arrived.unused[..] else { panic!("{:?}", arrived.unused) };
    assert_eq!(unused.block_id(), ids[2]);
    let view = unused.layer_view(1, 1).unwrap();
    assert_eq!(view, rig::pattern(mark, 1, 1, view.len()));
}

#[test]
fn blocks_that_the_caller_has_are_neither_copied_nor_claimed() {
    let rig = Rig::manual(8, 16);
    let wanted = hashes(1, 6);
    rig.put(&wanted);
    rig.clear_device();
    for skip in 0..8 {
        rig.clear_device();
        let before = edge(&rig, UP).blocks;
        let options = OnboardOptions { skip, ..options() };
        let arrived = rig.manager.onboard_blocking(rig.lookup(&wanted), options).unwrap();
        let expected = 6_usize.saturating_sub(skip);
        assert_eq!(arrived.blocks.len(), expected);
        assert_eq!(edge(&rig, UP).blocks - before, expected as u64);
        let got: Vec<_> = arrived
            .blocks
            .iter()
            .map(dynamo_llm::block_manager::ImmutableBlock::sequence_hash)
            .collect();
        assert_eq!(got, wanted[skip.min(6)..]);
        assert_bytes(&arrived.blocks);
    }
    // Tokens that do not fill a block have no hash and are never claimed.
    let tokens = rig::tokens(1, 6);
    let cut =
        dynamo_llm::block_manager::hash_tokens(&tokens[..6 * PAGE - 1], PAGE, &Identity::new());
    assert_eq!(rig.lookup(&cut.unwrap()).len(), 5);
}

#[test]
fn a_prefix_over_both_tiers_comes_up_whole_and_in_order() {
    let rig = Rig::manual(8, 16);
    let wanted = hashes(1, 6);
    rig.put(&wanted);
    rig.clear_device();
    let head = rig.get(&wanted[..2]);
    let found = rig.lookup(&wanted);
    assert_eq!((found.count(Tier::Device), found.count(Tier::Host)), (2, 4));
    assert!(found.tiers().eq([Tier::Device; 2].into_iter().chain([Tier::Host; 4])));
    let arrived = rig.manager.onboard_blocking(found, options()).unwrap();
    assert_eq!(arrived.results[..2], [const { Ok(Arrival::Present) }; 2]);
    assert_eq!(arrived.results[2..], [const { Ok(Arrival::Copied) }; 4]);
    assert_eq!(arrived.blocks[0].block_id(), head.blocks[0].block_id());
    assert_bytes(&arrived.blocks);
}

#[test]
fn a_miss_is_counted_once_per_tier_that_was_asked() {
    let rig = Rig::manual(8, 16);
    let wanted = hashes(1, 6);
    rig.put(&wanted);
    rig.clear_device();
    let held = rig.get(&wanted[..2]);
    let before = rig.manager.status();
    drop(rig.lookup(&wanted));
    let after = rig.manager.status();
    let asked = |tier| {
        let (before, after) = (&before.pools[&tier], &after.pools[&tier]);
        (after.hits - before.hits, after.misses - before.misses)
    };
    assert_eq!(asked(Tier::Device), (2, 4));
    assert_eq!(asked(Tier::Host), (4, 0));
    drop(held);
}

#[test]
fn a_short_request_does_not_wait_for_a_long_one_with_the_same_prefix() {
    let rig = Rig::manual(64, 128);
    let long = hashes(1, 40);
    rig.put(&long);
    rig.clear_device();
    rig.load.stall();
    let a = rig.manager.start_onboard(rig.lookup(&long[..8]), options()).unwrap();
    let b = rig.manager.start_onboard(rig.lookup(&long), options()).unwrap();
    let c = rig.manager.start_onboard(rig.lookup(&long[..4]), options()).unwrap();
    rig.load.resume();
    let c = c.wait(Some(LONG)).unwrap();
    assert_eq!(c.len(), 4);
    let (a, b) = (a.wait(Some(LONG)).unwrap(), b.wait(Some(LONG)).unwrap());
    assert_eq!((a.len(), b.len()), (8, 40));
    assert_eq!(edge(&rig, UP).blocks, 40, "no second copy of anything");
    let (a, b) = (a.blocks.unwrap(), b.blocks.unwrap());
    assert_eq!(a.ids(), &b.ids()[..8]);
    assert_bytes(&rig.manager.device().unwrap().single(b).unwrap());
}

#[test]
fn who_shares_a_load_that_is_given_up_gets_its_own() {
    let rig = Rig::manual(16, 32);
    let wanted = hashes(1, 6);
    rig.put(&wanted);
    rig.clear_device();
    rig.load.stall();
    let first = rig.manager.start_onboard(rig.lookup(&wanted), options()).unwrap();
    let second = rig.manager.start_onboard(rig.lookup(&wanted[..3]), options()).unwrap();
    drop(first);
    rig.load.resume();
    let arrived = second.wait(Some(LONG)).unwrap();
    assert_eq!(arrived.len(), 3);
    assert_eq!(edge(&rig, UP).blocks, 3);
    assert_bytes(&rig.manager.device().unwrap().single(arrived.blocks.unwrap()).unwrap());
    rig.settle();
    rig.assert_idle();
}

#[test]
fn at_the_deadline_the_prefix_that_arrived_is_handed_out() {
    let rig = Rig::manual(16, 32);
    let wanted = hashes(1, 6);
    rig.put(&wanted);
    rig.clear_device();
    let head = rig.get(&wanted[..2]);
    rig.load.stall();
    let deadline = Some(Instant::now() + Duration::from_millis(20));
    let options = OnboardOptions { deadline, ..options() };
    let arrived = rig.manager.onboard_blocking(rig.lookup(&wanted), options).unwrap();
    assert_eq!(arrived.blocks.len(), 2);
    assert_bytes(&arrived.blocks);
    let late = Err(TransferError::DeadlineExceeded);
    assert!(arrived.results[2..].iter().all(|result| *result == late));
    drop((arrived, head));
    // The slots of the rest are kept for the copies until these have ended, then free.
    assert_eq!(rig.manager.device().unwrap().status().mutable, 4);
    rig.load.resume();
    rig.settle();
    rig.assert_idle();
}

#[test]
fn slots_of_copies_that_failed_go_back_to_who_gave_them() {
    let rig = Rig::manual(8, 16);
    let wanted = hashes(1, 3);
    rig.put(&wanted);
    rig.clear_device();
    rig.load.set_faults(Faults { errors: 1.0, ..Faults::none(1) });
    let into = rig.manager.device().unwrap().allocate_slots(4).unwrap();
    let ids = into.ids().to_vec();
    let options = OnboardOptions { into: Some(into), ..options() };
    let arrived = rig.manager.onboard_slots(rig.lookup(&wanted), options).unwrap();
    assert!(arrived.is_empty());
    assert_eq!(arrived.unused.unwrap().ids(), ids);
}

#[test]
fn dropping_an_onboarding_releases_what_was_there_at_once() {
    let rig = Rig::manual(8, 16);
    let wanted = hashes(1, 4);
    rig.put(&wanted);
    rig.clear_device();
    drop(rig.get(&wanted[..2]));
    rig.load.stall();
    drop(rig.manager.start_onboard(rig.lookup(&wanted), options()).unwrap());
    let status = rig.manager.device().unwrap().status();
    assert_eq!((status.active, status.inactive, status.mutable), (0, 2, 2));
    rig.load.resume();
    rig.settle();
    rig.assert_idle();
}

#[test]
fn a_device_without_room_gives_the_prefix_that_fits() {
    let rig = Rig::manual(4, 16);
    let wanted = hashes(1, 4);
    rig.put(&wanted);
    let held = rig.fill(&hashes(2, 2));
    let arrived = rig.get(&wanted);
    assert_eq!(arrived.blocks.len(), 2);
    assert_eq!(arrived.results[2], Err(TransferError::NoRoom { tier: Tier::Device }));
    drop((held, arrived));
    assert_eq!(rig.get(&wanted).blocks.len(), 4);
}
