//! Every eviction policy keeps the contract of its trait, and evicts in the order it is named for.

#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeSet;

use dynamo_llm::block_manager::config::EvictionKind;
use dynamo_llm::block_manager::eviction::{EvictionPolicy, SlotId};
use proptest::prelude::*;

const CAPACITY: u32 = 12;

#[derive(Clone, Debug)]
enum Call {
    Insert(SlotId, u64),
    Touch(SlotId),
    Pin(SlotId),
    Unpin(SlotId),
    Remove(SlotId),
    Evict,
    Evicted(SlotId),
}

/// Right and wrong calls alike: the slots reach past the capacity and nothing is ordered.
fn call() -> impl Strategy<Value = Call> {
    let slot = || prop_oneof![20 => 0..CAPACITY, 1 => CAPACITY..CAPACITY + 2, 1 => Just(u32::MAX)];
    prop_oneof![
        4 => (slot(), 0u64..40).prop_map(|(slot, key)| Call::Insert(slot, key)),
        3 => slot().prop_map(Call::Touch),
        2 => slot().prop_map(Call::Pin),
        2 => slot().prop_map(Call::Unpin),
        1 => slot().prop_map(Call::Remove),
        2 => Just(Call::Evict),
        1 => slot().prop_map(Call::Evicted),
    ]
}

/// What any policy must agree with: which slots are evictable and which are in use.
#[derive(Default)]
struct Model {
    evictable: BTreeSet<SlotId>,
    pinned: BTreeSet<SlotId>,
}

impl Model {
    fn apply(&mut self, policy: &mut dyn EvictionPolicy, call: &Call) {
        match *call {
            Call::Insert(slot, key) => {
                policy.insert(slot, key);
                if slot < CAPACITY && !self.pinned.contains(&slot) {
                    self.evictable.insert(slot);
                }
            }
            Call::Touch(slot) => policy.touch(slot),
            Call::Pin(slot) => {
                policy.pin(slot);
                if self.evictable.remove(&slot) {
                    self.pinned.insert(slot);
                }
            }
            Call::Unpin(slot) => {
                policy.unpin(slot);
                if self.pinned.remove(&slot) {
                    self.evictable.insert(slot);
                }
            }
            Call::Remove(slot) => {
                policy.remove(slot);
                self.evictable.remove(&slot);
                self.pinned.remove(&slot);
            }
            Call::Evict => {
                let victim = policy.evict();
                assert_eq!(victim.is_none(), self.evictable.is_empty());
                assert!(victim.is_none_or(|slot| self.evictable.remove(&slot)), "{victim:?}");
            }
            Call::Evicted(slot) => {
                policy.evicted(slot);
                self.evictable.remove(&slot);
            }
        }
        assert_eq!(policy.len(), self.evictable.len(), "after {call:?}");
        assert_eq!(policy.is_empty(), self.evictable.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn evicts_each_evictable_block_once_and_no_other(
        calls in prop::collection::vec(call(), 0..200),
    ) {
        for &kind in EvictionKind::ALL {
            let mut policy = kind.build(CAPACITY);
            let mut model = Model::default();
            for call in &calls {
                model.apply(&mut *policy, call);
            }
            for slot in model.pinned.clone() {
                model.apply(&mut *policy, &Call::Unpin(slot));
            }
            while !model.evictable.is_empty() {
                model.apply(&mut *policy, &Call::Evict);
            }
            prop_assert_eq!(policy.evict(), None);
        }
    }
}

#[test]
fn no_room_is_no_trouble() {
    for &kind in EvictionKind::ALL {
        for capacity in [0, 1] {
            let mut policy = kind.build(capacity);
            assert_eq!(policy.name(), kind.name());
            for round in 0..4 {
                policy.insert(0, round);
                policy.touch(0);
                assert_eq!(policy.evict(), (capacity == 1).then_some(0), "{kind}");
            }
        }
    }
}

fn filled(kind: EvictionKind, capacity: u32) -> Box<dyn EvictionPolicy> {
    let mut policy = kind.build(capacity);
    let blocks: Vec<(SlotId, u64)> = (0..capacity).map(|slot| (slot, u64::from(slot))).collect();
    for &(slot, key) in &blocks {
        policy.insert(slot, key);
    }
    policy
}

fn drain(policy: &mut dyn EvictionPolicy) -> Vec<SlotId> {
    std::iter::from_fn(|| policy.evict()).collect()
}

#[test]
fn lru_evicts_by_end_of_last_use() {
    let mut policy = filled(EvictionKind::Lru, 6);
    policy.touch(0);
    for slot in [1, 2, 3] {
        policy.pin(slot);
    }
    for slot in [3, 1] {
        policy.unpin(slot);
    }
    assert_eq!(drain(&mut *policy), [4, 5, 0, 3, 1]);
    policy.unpin(2);
    assert_eq!(drain(&mut *policy), [2]);
}

#[test]
fn fifo_keeps_the_place_of_a_pinned_block() {
    let mut policy = filled(EvictionKind::Fifo, 5);
    policy.touch(0);
    for slot in [0, 3] {
        policy.pin(slot);
    }
    assert_eq!(policy.evict(), Some(1));
    for slot in [0, 3] {
        policy.unpin(slot);
    }
    policy.insert(1, 7);
    assert_eq!(drain(&mut *policy), [0, 2, 3, 4, 1]);
}

#[test]
fn arc_protects_what_was_seen_again_and_learns_from_ghosts() {
    let mut policy = filled(EvictionKind::Arc, 4);
    policy.touch(0);
    policy.pin(1);
    policy.unpin(1);
    // Seen once goes first, then the older of those seen again.
    assert_eq!(policy.evict(), Some(2));
    policy.insert(2, 100);
    assert_eq!(policy.evict(), Some(3));
    // Key 2 returns while it is a ghost: it counts as seen again, and one block that was seen only
    // once is worth keeping from now on.
    policy.insert(3, 2);
    assert_eq!(drain(&mut *policy), [0, 1, 3, 2]);
}

#[test]
fn s3fifo_filters_newcomers_and_readmits_ghosts() {
    let mut policy = filled(EvictionKind::S3fifo, 20);
    // Used while small: moves to the main queue. Not used: leaves as a ghost.
    policy.touch(0);
    assert_eq!(policy.evict(), Some(1));
    assert_eq!(policy.evict(), Some(2));
    policy.insert(1, 1);
    policy.insert(2, 99);
    policy.touch(0);
    // The small queue gives until it is below its share of two; then the main queue: slot 0 was
    // used there and goes round, slot 1 came back as a ghost and goes.
    let mut expected: Vec<SlotId> = (3..20).collect();
    expected.extend([1, 0, 2]);
    assert_eq!(drain(&mut *policy), expected);
}

#[test]
fn s3fifo_keeps_the_place_of_a_pinned_block() {
    let mut policy = filled(EvictionKind::S3fifo, 20);
    for slot in [0, 4] {
        policy.pin(slot);
    }
    assert_eq!(policy.evict(), Some(1));
    for slot in [0, 4] {
        policy.unpin(slot);
    }
    // Back at the tail, where its use carries it over to the main queue; likewise slot 4.
    assert_eq!([(); 3].map(|()| policy.evict()), [Some(2), Some(3), Some(5)]);
    for slot in 6..20 {
        policy.pin(slot);
    }
    assert_eq!(drain(&mut *policy), [0, 4]);
}
