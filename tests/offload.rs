//! The way down: what is stored, refused, waited for, and counted.

#![allow(clippy::unwrap_used)]

mod rig;

use dynamo_llm::block_manager::{
    Arrival, BlockPoolError, Registration, Tier, TransferError, metrics::EdgeMetrics,
    transfer::Faults,
};
use rig::{DOWN, LONG, Rig, UP, edge, hashes, settled, write};

#[test]
fn a_slow_store_saves_the_block_it_was_asked_for() {
    let rig = Rig::manual(2, 8);
    let first = hashes(1, 1);
    rig.store.stall();
    let held = rig.fill(&first);
    let storing = rig.manager.offload(&held).unwrap();
    // The request ends; its slots are wanted by others.
    drop(held);
    let device = rig.manager.device().unwrap();
    let refused = device.allocate_blocks_blocking(2).unwrap_err();
    assert_eq!(refused, BlockPoolError::NotEnoughBlocksAvailable(2, 1));
    drop(rig.fill(&hashes(2, 1)));
    rig.store.resume();
    assert_eq!(settled(storing), [Ok(Arrival::Copied)]);
    drop(rig.fill(&hashes(3, 2)));
    assert_eq!(rig.present(Tier::Device, &first), 0);
    assert_eq!(rig.get(&first).blocks.len(), 1);
}

#[test]
fn a_store_that_is_let_go_neither_frees_nor_writes_what_is_anothers() {
    let rig = Rig::manual(2, 2);
    let first = hashes(1, 2);
    let held = rig.fill(&first);
    rig.store.stall();
    let storing = rig.manager.offload(&held).unwrap();
    storing.cancel();
    assert_eq!(settled(storing), [const { Err(TransferError::Cancelled) }; 2]);
    // Both sides stay out of use until the copies have ended.
    drop(held);
    let host = rig.manager.host().unwrap();
    assert_eq!(host.available_blocks(), 0);
    assert_eq!(rig.manager.device().unwrap().available_blocks(), 0);
    rig.store.resume();
    rig.settle();
    assert_eq!(host.available_blocks(), 2);
    let others = hashes(2, 2);
    rig.put(&others);
    rig.clear_device();
    assert_eq!(rig.get(&others).blocks.len(), 2);
}

#[test]
fn a_refused_store_does_not_disturb_those_after_it() {
    let rig = Rig::manual(32, 10);
    let (a, b, c) = (hashes(1, 8), hashes(2, 8), hashes(3, 2));
    rig.put(&a);
    let pinned = rig.manager.host().unwrap().match_sequence_hashes_blocking(&a).unwrap();
    assert_eq!(pinned.len(), 8);
    let (held_b, held_c) = (rig.fill(&b), rig.fill(&c));
    let results = settled(rig.manager.offload(&held_b).unwrap());
    let refused = TransferError::NoRoom { tier: Tier::Host };
    assert_eq!(results[..2], [const { Ok(Arrival::Copied) }; 2]);
    assert!(results[2..].iter().all(|result| *result == Err(refused.clone())));
    assert_eq!(edge(&rig, DOWN).failures["no_room"], 6);
    assert_eq!(settled(rig.manager.offload(&held_c).unwrap()), [const { Ok(Arrival::Copied) }; 2]);
    // Once there is room, what was refused is stored like anything else.
    drop(pinned);
    let results = settled(rig.manager.offload(&held_b).unwrap());
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    drop((held_b, held_c));
    rig.clear_device();
    assert_eq!(rig.get(&b).blocks.len(), 8);
    rig.assert_idle();
}

#[test]
fn blocks_that_found_no_room_go_down_when_there_is_some() {
    let rig = Rig::new(32, 9);
    let in_use = hashes(1, 5);
    drop(rig.fill(&in_use));
    rig.settle();
    let in_use = rig.manager.host().unwrap().match_sequence_hashes_blocking(&in_use).unwrap();
    let wanted = hashes(2, 8);
    let held = rig.fill(&wanted);
    rig.settle();
    assert_eq!(rig.present(Tier::Host, &wanted), 4, "the end never takes the beginning's place");
    assert_eq!(edge(&rig, DOWN).queue_depth, 4, "the rest waits");
    rig.clear_device();
    assert_eq!(rig.lookup(&wanted[4..]).count(Tier::Host), 0);
    drop(in_use);
    // The same request goes on.
    let device = rig.manager.device().unwrap();
    let mut next = device.allocate_blocks_blocking(1).unwrap();
    let name = hashes(3, 1)[0];
    write(&mut next[0], name);
    let chain = Registration::chain(&[name], 0, Some(wanted[7]));
    drop(device.register_blocks_as(next, &chain).unwrap());
    rig.settle();
    assert_eq!(edge(&rig, DOWN).queue_depth, 0);
    assert_eq!(rig.present(Tier::Host, &wanted), 8);
    assert_eq!(rig.present(Tier::Host, &[name]), 1);
    drop(held);
    rig.clear_device();
    assert_eq!(rig.get(&wanted).blocks.len(), 8);
}

#[test]
fn a_sequence_longer_than_the_host_keeps_its_beginning_and_blocks_nobody() {
    let rig = Rig::new(32, 8);
    let (long, short) = (hashes(1, 20), hashes(2, 4));
    let held = rig.fill(&long);
    rig.settle();
    assert_eq!(rig.present(Tier::Host, &long), 8);
    drop(rig.fill(&short));
    rig.settle();
    assert_eq!(rig.present(Tier::Host, &short), 4);
    assert_eq!(rig.present(Tier::Host, &long), 4);
    drop(held);
    rig.settle();
    rig.assert_idle();
}

#[test]
fn a_host_smaller_than_the_device_keeps_turning_over() {
    let rig = Rig::new(100, 20);
    for seed in 0..100 {
        drop(rig.fill(&hashes(seed, 10)));
        rig.settle();
    }
    let stored = edge(&rig, DOWN);
    assert_eq!((stored.blocks, stored.queue_depth, stored.drops), (1000, 0, 0));
    assert_eq!(rig.present(Tier::Host, &hashes(99, 10)), 10);
    assert_eq!(rig.present(Tier::Host, &hashes(98, 10)), 10);
    rig.assert_idle();
}

#[test]
fn a_full_engine_delays_stores_and_loses_none() {
    let rig = Rig::tight(64, 128, 4);
    let held: Vec<_> =
        (0..8).map(|seed| rig.manager.device().map(|_| rig.fill(&hashes(seed, 8)))).collect();
    rig.settle();
    let stored = edge(&rig, DOWN);
    assert_eq!((stored.blocks, stored.drops, stored.failures.values().sum::<u64>()), (64, 0, 0));
    drop(held);
    rig.clear_device();
    for seed in 0..8 {
        assert_eq!(rig.get(&hashes(seed, 8)).blocks.len(), 8);
    }
}

#[test]
fn a_block_evicted_before_its_turn_is_a_drop_and_nothing_else() {
    let rig = Rig::new(4, 2);
    let host = rig.manager.host().unwrap();
    let in_use = host.allocate_slots(2).unwrap();
    drop(rig.fill(&hashes(1, 3)));
    assert_eq!(edge(&rig, DOWN).queue_depth, 3, "there is no room");
    rig.clear_device();
    drop(in_use);
    assert_eq!(rig.manager.flush_blocking(LONG).unwrap(), 0);
    let down = edge(&rig, DOWN);
    assert_eq!((down.drops, down.blocks, down.failures.values().sum::<u64>()), (3, 0, 0));
    // What comes back in the meantime is stored from where it is now.
    let in_use = host.allocate_slots(2).unwrap();
    drop(rig.fill(&hashes(2, 2)));
    rig.clear_device();
    drop(rig.fill(&hashes(2, 2)));
    drop(in_use);
    rig.settle();
    assert_eq!(rig.present(Tier::Host, &hashes(2, 2)), 2);
    rig.assert_idle();
}

#[test]
fn a_parent_is_never_evicted_before_its_child() {
    let rig = Rig::manual(8, 3);
    let chain = hashes(1, 3);
    let held = rig.fill(&chain);
    settled(rig.manager.offload(&held).unwrap());
    let host = rig.manager.host().unwrap();
    // z is dropped by a newcomer, then stored again.
    rig.put(&hashes(2, 1));
    assert_eq!(rig.present(Tier::Host, &chain), 2);
    settled(rig.manager.offload(&held[2..]).unwrap());
    assert_eq!(rig.present(Tier::Host, &chain), 3);
    rig.put(&hashes(3, 1));
    assert_eq!(rig.present(Tier::Host, &chain), 2, "z went, x and y are there");
    assert!(rig.lookup(&chain[2..]).count(Tier::Host) == 0);
    host.blocks().pool().self_check().unwrap();
}

#[test]
fn what_two_ask_for_at_once_is_copied_once() {
    let rig = Rig::manual(8, 16);
    let wanted = hashes(1, 4);
    let held = rig.fill(&wanted);
    rig.store.stall();
    let one = rig.manager.offload(&held).unwrap();
    let two = rig.manager.offload(&held[1..3]).unwrap();
    // The first gives up; who still wants blocks gets them.
    one.cancel();
    rig.store.resume();
    assert_eq!(settled(two), [const { Ok(Arrival::Copied) }; 2]);
    assert!(settled(one).iter().all(|result| *result == Err(TransferError::Cancelled)));
    rig.settle();
    assert_eq!(edge(&rig, DOWN).blocks, 2);
    assert_eq!(rig.present(Tier::Host, &wanted), 0);
    assert_eq!(rig.present(Tier::Host, &wanted[1..]), 2);
}

#[test]
fn each_counter_counts_what_was_really_done() {
    let rig = Rig::manual(16, 32);
    let zero = rig.manager.status();
    for edge in [DOWN, UP] {
        let EdgeMetrics { blocks, bytes, present, failures, .. } = &zero.edges[&edge];
        assert_eq!((*blocks, *bytes, *present), (0, 0, 0));
        assert!(failures.len() >= 5 && failures.values().all(|&count| count == 0));
    }
    let wanted = hashes(1, 10);
    let held = rig.fill(&wanted);
    settled(rig.manager.offload(&held).unwrap());
    // 2 duplicates are skipped, 1 fails.
    settled(rig.manager.offload(&held[..2]).unwrap());
    rig.store.set_faults(Faults { errors: 1.0, ..Faults::none(1) });
    assert!(settled(rig.manager.offload(&rig.fill(&hashes(2, 1))).unwrap())[0].is_err());
    drop(held);
    rig.clear_device();
    assert_eq!(rig.get(&wanted[..6]).blocks.len(), 6);
    let bytes = rig.manager.host().unwrap().blocks().layout().block_bytes() as u64;
    let down = edge(&rig, DOWN);
    assert_eq!((down.blocks, down.bytes, down.present), (10, 10 * bytes, 2));
    assert_eq!(down.failures.values().sum::<u64>(), 1);
    let up = edge(&rig, UP);
    assert_eq!((up.blocks, up.bytes, up.present), (6, 6 * bytes, 0));
    assert_eq!(up.failures.values().sum::<u64>(), 0);
}
