//! Whose block it is, and who may hold it for how long.

#![allow(clippy::unwrap_used)]

mod rig;

use std::{collections::BTreeSet, sync::Arc};

use dynamo_llm::block_manager::{
    Arrival, BlockPoolError, EngineKey, EvictionMode, Identity, MediaItem, Registration, Tier,
    config::OffloadPolicy,
};
use rig::{LONG, Log, PAGE, Rig, assert_bytes, hashes, hashes_of, options, settled, write};

#[test]
fn adapters_and_tenants_never_share_blocks_in_any_tier() {
    let rig = Rig::manual(16, 32);
    let of = |identity: Identity| hashes_of(1, 4, &identity);
    let plain = of(Identity::new());
    let others = [
        of(Identity::new().with_adapter("a")),
        of(Identity::new().with_adapter("b")),
        of(Identity::new().with_salt("a")),
        of(Identity::new().with_salt("t2")),
    ];
    let mine = &others[0];
    rig.put(mine);
    let look = || {
        assert_eq!(rig.lookup(&plain).len(), 0);
        for other in &others[1..] {
            assert_eq!(rig.lookup(other).len(), 0);
            // Not only the first block: none of the chain is known.
            assert!(other.iter().all(|hash| rig.lookup(&[*hash]).is_empty()));
        }
        assert_eq!(rig.lookup(mine).len(), 4);
    };
    look();
    rig.clear_device();
    look();
    assert_eq!(rig.get(mine).blocks.len(), 4);
}

#[test]
fn media_share_what_comes_before_them_and_nothing_after() {
    let rig = Rig::manual(8, 16);
    let with = |digest: u8| {
        let media = MediaItem::new(PAGE, vec![digest; 32]);
        hashes_of(1, 3, &Identity::new().with_media([media]))
    };
    rig.put(&with(1));
    rig.clear_device();
    assert_eq!(rig.lookup(&with(2)).len(), 1);
    assert_eq!(rig.get(&with(1)).blocks.len(), 3);
}

#[test]
fn hashes_that_collide_never_hand_out_the_other_content() {
    let rig = Rig::manual(8, 16);
    let device = rig.manager.device().unwrap();
    let shared = hashes(1, 1)[0];
    let registration = |name: &[u8]| Registration {
        engine_key: Some(EngineKey::new(name).unwrap()),
        ..Registration::new(shared.into())
    };
    let first = device.allocate_slots(1).unwrap();
    let first = device.register_slots(first, &[registration(b"one")]).unwrap();
    let second = device.allocate_slots(1).unwrap();
    let second = device.register_slots(second, &[registration(b"two")]).unwrap();
    let pool = device.blocks().pool();
    let found = |name: &[u8]| {
        let keys = [EngineKey::new(name).unwrap()];
        pool.match_prefix_with_engine_keys(&[shared.into()], &keys).ids().to_vec()
    };
    assert_eq!(found(b"one"), first.ids());
    assert!(found(b"two").is_empty());
    drop(second);
}

#[test]
fn what_belongs_to_a_block_follows_it_through_the_tiers() {
    let rig = Rig::manual(2, 8);
    let device = rig.manager.device().unwrap();
    let named = hashes(1, 2);
    let key = EngineKey::new(b"first").unwrap();
    let mut registrations = Registration::chain(&named, 0, None);
    registrations[0].engine_key = Some(key);
    let mut blocks = device.allocate_blocks_blocking(2).unwrap();
    blocks.iter_mut().zip(&named).for_each(|(block, &hash)| write(block, hash));
    let blocks = device.register_blocks_as(blocks, &registrations).unwrap();
    settled(rig.manager.offload(&blocks).unwrap());
    drop(blocks);
    // Other blocks, without engine keys, take both slots.
    drop(rig.fill(&hashes(2, 2)));
    let arrived = rig.manager.onboard_slots(rig.lookup(&named), options()).unwrap();
    let back = arrived.blocks.unwrap().registrations();
    assert_eq!(back, registrations, "present where it was, absent where it was not");
}

#[test]
fn a_block_that_has_not_arrived_cannot_be_found_nor_offloaded() {
    let rig = Rig::manual(8, 16);
    let wanted = hashes(1, 4);
    rig.put(&wanted);
    rig.clear_device();
    rig.load.stall();
    let coming = rig.manager.start_onboard(rig.lookup(&wanted), options()).unwrap();
    assert_eq!(rig.present(Tier::Device, &wanted), 0);
    rig.load.resume();
    let arrived = coming.wait(Some(LONG)).unwrap();
    assert_eq!(arrived.len(), 4);
    // Now it can: the copy below is the same, and it is not made twice.
    let again = rig.manager.offload_slots(&arrived.blocks.unwrap()).unwrap();
    assert_eq!(settled(again), [const { Ok(Arrival::Present) }; 4]);
}

#[test]
fn a_match_holds_what_it_found() {
    let rig = Rig::manual(4, 8);
    let wanted = hashes(1, 1);
    drop(rig.fill(&wanted));
    let found = rig.lookup(&wanted);
    let device = rig.manager.device().unwrap();
    assert_eq!(
        device.allocate_blocks_blocking(4).unwrap_err(),
        BlockPoolError::NotEnoughBlocksAvailable(4, 3)
    );
    let mut others = device.allocate_blocks_blocking(3).unwrap();
    for block in &mut others {
        write(block, hashes(2, 1)[0]);
    }
    let arrived = rig.manager.onboard_blocking(found, options()).unwrap();
    assert_eq!(arrived.blocks.len(), 1);
    assert_bytes(&arrived.blocks);
}

#[test]
fn a_thousand_unused_lookups_pin_nothing() {
    let rig = Rig::manual(4, 8);
    let wanted = hashes(1, 4);
    rig.put(&wanted);
    for round in 0..1000 {
        let found = rig.lookup(&wanted);
        match round % 3 {
            0 => drop(found),
            1 => drop(rig.manager.onboard(found, options())),
            _ => rig.manager.start_onboard(found, options()).unwrap().cancel(),
        }
    }
    rig.assert_idle();
    let all = rig.manager.device().unwrap().allocate_blocks_blocking(4).unwrap();
    assert_eq!(all.len(), 4);
}

#[test]
fn a_reader_keeps_its_block_through_evictions_in_batches() {
    let rig = Rig::manual(8, 16);
    let held = rig.fill(&hashes(1, 2));
    for seed in 2..20 {
        drop(rig.fill(&hashes(seed, 6)));
        assert_bytes(&held);
    }
    rig.manager.device().unwrap().trigger_eviction_blocking(EvictionMode::Aggressive).unwrap();
    assert_bytes(&held);
    drop(held);
    rig.assert_idle();
}

#[test]
fn two_copies_of_one_hash_are_each_their_holders_own() {
    let keys: Arc<Log> = Arc::default();
    let rig = Rig::with(4, 8, OffloadPolicy::Manual, |b| b.event_manager(keys.clone()));
    let device = rig.manager.device().unwrap();
    let hash = hashes(1, 1);
    for first_goes_first in [true, false] {
        let (first, second) = (rig.fill(&hash), rig.fill(&hash));
        assert_ne!(first[0].block_id(), second[0].block_id());
        assert_eq!(rig.lookup(&hash).segments()[0].ids(), [first[0].block_id()]);
        let (gone, left) = if first_goes_first { (first, second) } else { (second, first) };
        drop(gone);
        assert_bytes(&left);
        assert_eq!(rig.lookup(&hash).len(), 1);
        drop(left);
        rig.assert_idle();
        assert_eq!(device.status().duplicates, if first_goes_first { 1 } else { 2 });
        rig.clear_device();
    }
    assert_eq!(keys.resident(Tier::Device), BTreeSet::new());
    assert_eq!(keys.count("registered"), 2, "one a round");
}

#[test]
fn shared_pages_are_counted_once() {
    let rig = Rig::manual(20, 40);
    let shared = hashes(1, 5);
    let parent = *shared.last().unwrap();
    let branch = |seed| {
        let device = rig.manager.device().unwrap();
        let mut tail = device.allocate_blocks_blocking(3).unwrap();
        let names = hashes(seed, 3);
        tail.iter_mut().zip(&names).for_each(|(block, &hash)| write(block, hash));
        device.register_blocks_as(tail, &Registration::chain(&names, 0, Some(parent))).unwrap()
    };
    let one = (rig.fill(&shared), branch(2));
    let two = (rig.lookup(&shared), branch(3));
    let status = rig.manager.device().unwrap().status();
    assert_eq!((status.active, status.free), (11, 9));
    drop((one, two));
    rig.assert_idle();
    let status = rig.manager.device().unwrap().status();
    assert_eq!((status.free, status.inactive), (9, 11));
}
