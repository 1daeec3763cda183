//! Races between handles of one pool, in every interleaving.
//!
//! The memory behind the slots is of cells that notice when one thread writes what another may be
//! reading: a model passes only if handles alone keep them apart. Runs with `--cfg dynamo_loom`,
//! which puts loom's locks under the crate; `make loom` does that.

#![cfg(dynamo_loom)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::{Arc, Mutex};

use dynamo_llm::block_manager::{
    Key, SequenceHash, Tier,
    config::EvictionKind,
    events::{BlockEvent, EventManager, EventStream, TierCleared},
    pool::{
        EvictionMode, ImmutableSlots, MutableSlots, PoolError, Registration, SlotPool,
        SlotPoolOptions,
    },
};
use loom::{cell::UnsafeCell, thread};

const A: Key = Key::new(SequenceHash::from_u128(0xa), 0);
const B: Key = Key::new(SequenceHash::from_u128(0xb), 0);

/// One cell a slot, which holds the key of the block that was written there.
struct Memory(Vec<UnsafeCell<Option<Key>>>);

// SAFETY: the cells may be reached from all threads, and loom checks each access: that is the test.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

/// What a follower of the events believes to be there, and the numbers it has seen.
#[derive(Default)]
struct Follower(Mutex<(Vec<Key>, u64)>);

impl Follower {
    fn apply(&self, sequence: u64, change: impl FnOnce(&mut Vec<Key>)) {
        let mut state = self.0.lock().unwrap();
        assert_eq!(sequence, state.1, "events in order");
        state.1 += 1;
        change(&mut state.0);
    }

    fn believes(&self, key: Key) -> bool {
        self.0.lock().unwrap().0.contains(&key)
    }
}

impl EventManager for Follower {
    fn block_allocated(&self, event: &BlockEvent) {
        self.apply(event.sequence, |_| {});
    }
    fn block_matched(&self, event: &BlockEvent) {
        self.apply(event.sequence, |keys| assert!(keys.contains(&event.key.unwrap())));
    }
    fn block_registered(&self, event: &BlockEvent) {
        self.apply(event.sequence, |keys| {
            assert!(!keys.contains(&event.key.unwrap()), "registered twice");
            keys.push(event.key.unwrap());
        });
    }
    fn block_evicted(&self, event: &BlockEvent) {
        self.apply(event.sequence, |keys| {
            let place = keys.iter().position(|&key| Some(key) == event.key);
            keys.remove(place.unwrap());
        });
    }
    fn tier_cleared(&self, event: &TierCleared) {
        self.apply(event.sequence, Vec::clear);
    }
}

#[derive(Clone)]
struct World {
    pool: SlotPool,
    memory: Arc<Memory>,
    follower: Arc<Follower>,
}

impl World {
    fn new(capacity: usize, told: bool) -> Self {
        let follower = Arc::new(Follower::default());
        let events = told.then(|| Arc::new(EventStream::new(follower.clone())));
        let policy = EvictionKind::Lru.build(capacity as u32);
        let options = SlotPoolOptions::new(Tier::Device, capacity, policy);
        let options = SlotPoolOptions { events, ..options };
        let cells = (0..capacity).map(|_| UnsafeCell::new(None)).collect();
        Self { pool: SlotPool::new(options).unwrap(), memory: Arc::new(Memory(cells)), follower }
    }

    fn write(&self, slots: &MutableSlots, key: Key) {
        for &id in slots.ids() {
            // SAFETY: the pointer is that of the cell, and loom fails the test if it is shared.
            self.memory.0[id as usize].with_mut(|cell| unsafe { *cell = Some(key) });
        }
    }

    fn shows(&self, blocks: &ImmutableSlots, key: Key) {
        for &id in blocks.ids() {
            // SAFETY: the pointer is that of the cell, and loom fails the test if it is written.
            self.memory.0[id as usize].with(|cell| assert_eq!(unsafe { *cell }, Some(key)));
        }
    }

    fn register(&self, slots: MutableSlots, key: Key) -> Result<ImmutableSlots, PoolError> {
        self.write(&slots, key);
        self.pool.register(slots, &[Registration::new(key)]).map_err(|(error, _)| error)
    }

    /// A registered block in a slot of its own.
    fn hold(&self, key: Key) -> ImmutableSlots {
        self.register(self.pool.allocate(1).unwrap(), key).unwrap()
    }

    /// Looks `key` up, and reads what was found.
    fn find(&self, key: Key) -> ImmutableSlots {
        let found = self.pool.match_prefix(&[key]);
        self.shows(&found, key);
        found
    }

    /// Takes a slot if there is one and writes another block into it.
    fn take(&self, key: Key) -> Option<MutableSlots> {
        let slots = self.pool.allocate(1).ok()?;
        self.write(&slots, key);
        Some(slots)
    }

    /// With no handle left: the books are right and the events told what is there.
    fn check(&self, told: bool) {
        self.pool.self_check().unwrap();
        let metrics = self.pool.metrics();
        assert_eq!((metrics.mutable, metrics.active), (0, 0));
        for key in [A, B] {
            assert!(!told || self.follower.believes(key) == self.pool.contains(&[key])[0]);
        }
        let rest = self.pool.capacity() - metrics.quarantined as usize;
        assert_eq!(self.pool.allocate(rest).unwrap().len(), rest);
    }
}

/// Runs `race` in every interleaving of up to five preemptions, which is where such bugs are.
fn model(race: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(5);
    builder.check(race);
}

fn spawn<T: 'static>(
    world: &World,
    work: impl FnOnce(&World) -> T + 'static,
) -> thread::JoinHandle<T> {
    let world = world.clone();
    thread::spawn(move || work(&world))
}

#[test]
fn a_match_keeps_its_block_from_an_allocation() {
    model(|| {
        let world = World::new(1, false);
        drop(world.hold(A));
        let taker = spawn(&world, |world| drop(world.take(B)));
        let found = world.find(A);
        world.shows(&found, A);
        taker.join().unwrap();
        world.shows(&found, A);
        drop(found);
        world.check(false);
    });
}

#[test]
fn the_last_of_several_readers_lets_go() {
    model(|| {
        let world = World::new(1, false);
        let first = world.hold(A);
        let second = first.clone();
        let reader = spawn(&world, move |world| {
            world.shows(&second, A);
            let third = second.clone();
            drop(second);
            world.shows(&third, A);
        });
        let taker = spawn(&world, |world| drop(world.take(B)));
        world.shows(&first, A);
        drop(first);
        drop(world.find(A));
        reader.join().unwrap();
        taker.join().unwrap();
        world.check(false);
    });
}

#[test]
fn a_weak_handle_gets_its_own_block_or_none() {
    model(|| {
        let world = World::new(1, false);
        let held = world.hold(A);
        let weak = held.downgrade();
        drop(held);
        let taker = spawn(&world, |world| {
            let slots = world.take(B)?;
            world.register(slots, B).ok()
        });
        if let Some(found) = weak.upgrade(0) {
            world.shows(&found, A);
        }
        drop(taker.join().unwrap());
        if let Some(found) = weak.upgrade(0) {
            world.shows(&found, A);
        }
        world.check(false);
    });
}

#[test]
fn no_block_from_before_a_reset_is_found_after_it() {
    model(|| {
        let world = World::new(2, true);
        let slots = world.pool.allocate(1).unwrap();
        let writer = spawn(&world, move |world| world.register(slots, A));
        let resetter = spawn(&world, |world| {
            assert!(world.pool.reset() <= 1);
            world.pool.contains(&[A])[0]
        });
        drop(world.find(A));
        let found_after = resetter.join().unwrap();
        assert!(!found_after);
        match writer.join().unwrap() {
            Ok(held) => assert_eq!(held.are_current(), [false]),
            Err(error) => assert!(matches!(error, PoolError::Stale { .. }), "{error}"),
        }
        assert!(!world.pool.contains(&[A])[0]);
        world.check(true);
    });
}

#[test]
fn a_duplicate_takes_over_from_a_block_that_leaves() {
    model(|| {
        let world = World::new(2, true);
        let first = world.hold(A);
        let slots = world.pool.allocate(1).unwrap();
        let writer = spawn(&world, move |world| world.register(slots, A).unwrap());
        drop(first);
        drop(world.take(B));
        let second = writer.join().unwrap();
        world.shows(&second, A);
        world.shows(&world.find(A), A);
        assert!(world.pool.contains(&[A])[0]);
        drop(second);
        world.check(true);
    });
}

#[test]
fn a_block_that_proves_bad_is_found_no_more() {
    model(|| {
        let world = World::new(1, true);
        let held = world.hold(A);
        let weak = held.downgrade();
        let judge = spawn(&world, |world| {
            held.quarantine();
            world.pool.contains(&[A])[0]
        });
        let found = world.find(A);
        assert!(!judge.join().unwrap());
        assert!(weak.upgrade(0).is_none());
        drop(found);
        assert_eq!(world.pool.metrics().quarantined, 1);
        world.check(true);
    });
}

#[test]
fn events_tell_what_is_there_in_whichever_order_it_came() {
    model(|| {
        let world = World::new(2, true);
        let other = spawn(&world, |world| {
            drop(world.hold(A));
            world.pool.trigger_eviction(EvictionMode::Aggressive);
        });
        drop(world.hold(B));
        drop(world.find(A));
        other.join().unwrap();
        world.check(true);
    });
}
