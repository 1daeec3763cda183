//! What callers of a pool rely on, one behaviour a test.

#![allow(clippy::unwrap_used, missing_docs)]

mod refusals;
mod sections;

use std::sync::{Arc, Mutex};

use dynamo_llm::block_manager::{
    EngineKey, Key, SequenceHash, SlotId, Tier,
    config::EvictionKind,
    events::{BlockEvent, EventManager, EventStream, TierCleared},
    eviction::EvictionPolicy,
    pool::{EvictionMode, ImmutableSlots, PoolError, Registration, SlotPool, SlotPoolOptions},
};

fn pool_with(policy: Box<dyn EvictionPolicy>, capacity: usize) -> SlotPool {
    SlotPool::new(SlotPoolOptions::new(Tier::Host, capacity, policy)).unwrap()
}

fn pool(capacity: usize) -> SlotPool {
    pool_with(EvictionKind::Lru.build(capacity as u32), capacity)
}

/// Names of the blocks `numbers` of sequence `sequence`, each continuing the one before.
fn chain(sequence: u128, numbers: std::ops::Range<u128>) -> Vec<Registration> {
    let hash = |n| SequenceHash::from_u128(sequence << 64 | (n + 1));
    let parent = numbers.start.checked_sub(1).map(hash);
    Registration::chain(&numbers.map(hash).collect::<Vec<_>>(), 0, parent)
}

fn keys(names: &[Registration]) -> Vec<Key> {
    names.iter().map(|name| name.key).collect()
}

fn store(pool: &SlotPool, names: &[Registration]) -> ImmutableSlots {
    pool.register(pool.allocate(names.len()).unwrap(), names).unwrap()
}

/// Everything that nobody holds can be had, and the books say so.
fn assert_all_available(pool: &SlotPool) {
    pool.self_check().unwrap();
    assert_eq!(pool.available(), pool.capacity());
    assert_eq!(pool.allocate(pool.capacity()).unwrap().len(), pool.capacity());
}

#[derive(Default)]
struct Log(Mutex<Vec<(&'static str, Option<Key>)>>);

impl Log {
    fn take(&self) -> Vec<(&'static str, Option<Key>)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl EventManager for Log {
    fn block_registered(&self, event: &BlockEvent) {
        self.0.lock().unwrap().push(("stored", event.key));
    }
    fn block_evicted(&self, event: &BlockEvent) {
        self.0.lock().unwrap().push(("removed", event.key));
    }
    fn tier_cleared(&self, _: &TierCleared) {
        self.0.lock().unwrap().push(("cleared", None));
    }
}

fn told_pool(capacity: usize) -> (SlotPool, Arc<Log>) {
    let log = Arc::new(Log::default());
    let events = Some(Arc::new(EventStream::new(log.clone())));
    let policy = EvictionKind::Lru.build(capacity as u32);
    let options = SlotPoolOptions { events, ..SlotPoolOptions::new(Tier::Host, capacity, policy) };
    (SlotPool::new(options).unwrap(), log)
}

#[test]
fn a_match_holds_what_it_returns() {
    let pool = pool(4);
    let x = chain(1, 0..1);
    drop(store(&pool, &x));
    let found = pool.match_prefix(&keys(&x));
    let error = pool.allocate(4).unwrap_err();
    assert!(
        matches!(error, PoolError::NotEnoughBlocksAvailable { requested: 4, available: 3, .. }),
        "{error}"
    );
    let others = store(&pool, &chain(2, 0..3));
    assert!(!others.ids().contains(&found.ids()[0]));
    assert_eq!(found.registrations(), x);
}

#[test]
fn unused_lookups_leave_nothing_pinned() {
    let pool = pool(8);
    let names = chain(1, 0..8);
    drop(store(&pool, &names));
    for round in 0..1000 {
        let found = pool.match_prefix(&keys(&names));
        match round % 4 {
            0 => drop(found),
            1 => drop((found.clone(), found)),
            // Some of the single handles are never asked for.
            2 => drop(found.into_singles().take(3).collect::<Vec<_>>()),
            _ => {
                let gone = std::thread::spawn(move || drop(found.slice(2..5))).join();
                gone.unwrap();
            }
        }
    }
    assert_eq!(pool.metrics().active, 0);
    assert_all_available(&pool);
}

#[test]
fn a_batch_eviction_spares_what_a_reader_holds() {
    for policy in EvictionKind::ALL {
        let pool = pool_with(policy.build(8), 8);
        let names = chain(1, 0..8);
        let mut memory = [0_u128; 8];
        let all = store(&pool, &names);
        for (&id, name) in all.ids().iter().zip(&names) {
            memory[id as usize] = name.key.hash.as_u128();
        }
        let reader = all.slice(3..4);
        drop(all);
        for poison in 0..10 {
            let slots = pool.allocate_up_to(8);
            assert_eq!(slots.len(), 7);
            slots.ids().iter().for_each(|&id| memory[id as usize] = poison);
        }
        assert_eq!(memory[reader.ids()[0] as usize], names[3].key.hash.as_u128());
        assert_eq!(pool.trigger_eviction(EvictionMode::Aggressive), 0);
        drop(reader);
        assert_all_available(&pool);
    }
}

#[test]
fn a_duplicate_is_its_own_copy_in_either_order_of_release() {
    for first_goes_first in [true, false] {
        let (pool, log) = told_pool(3);
        let name = chain(1, 0..1);
        let (first, second) = (store(&pool, &name), store(&pool, &name));
        assert_eq!((first.are_duplicates(), second.are_duplicates()), (vec![false], vec![true]));
        assert_ne!(first.ids(), second.ids());
        let slots: [SlotId; 2] = [first.ids()[0], second.ids()[0]];
        let find = || pool.match_prefix(&keys(&name)).ids()[0];
        if first_goes_first {
            drop(first);
            assert_eq!((find(), second.are_current()), (slots[0], vec![true]));
            drop(second);
        } else {
            drop(second);
            assert_eq!((find(), first.are_current()), (slots[0], vec![true]));
            drop(first);
        }
        assert_eq!(find(), slots[0]);
        let metrics = pool.metrics();
        assert_eq!((metrics.free, metrics.inactive), (2, 1));
        assert_eq!((metrics.registrations, metrics.duplicates), (1, 1));
        assert_eq!(log.take(), [("stored", Some(name[0].key))]);
    }
}

#[test]
fn the_oldest_duplicate_takes_over_unnoticed() {
    let (pool, log) = told_pool(4);
    let names = chain(1, 0..2);
    let first = store(&pool, &names[..1]);
    let child = store(&pool, &names[1..]);
    let (second, third) = (store(&pool, &names[..1]), store(&pool, &names[..1]));
    log.take();
    first.quarantine();
    let found = pool.match_prefix(&keys(&names));
    assert_eq!(found.ids(), [second.ids()[0], child.ids()[0]]);
    drop(found);
    drop(second);
    assert_eq!(pool.match_prefix(&keys(&names)).len(), 2);
    pool.self_check().unwrap();
    assert_eq!(log.take(), []);
    // The place in the chain was handed over too: the child goes first.
    drop((third, child));
    assert_eq!(pool.trigger_eviction(EvictionMode::Aggressive), 2);
    let gone = [names[1], names[0]].map(|name| ("removed", Some(name.key)));
    assert_eq!(log.take(), gone);
}

#[test]
fn many_duplicates_cost_no_more_than_few() {
    let pool = pool(20_000);
    let name = chain(1, 0..1);
    let names = vec![name[0]; 20_000];
    // Were each to walk past the others, this would be 400 million steps.
    let all = store(&pool, &names);
    assert_eq!(pool.metrics().duplicates, 19_999);
    drop(all);
    assert_eq!(pool.metrics().free, 19_999);
}

#[test]
fn shared_blocks_are_counted_once() {
    let pool = pool(12);
    let prefix = chain(1, 0..5);
    let first = store(&pool, &prefix);
    let shared = pool.match_prefix(&keys(&prefix));
    let tails = [store(&pool, &chain(2, 5..8)), store(&pool, &chain(3, 5..8))];
    let metrics = pool.metrics();
    assert_eq!((metrics.active, metrics.free), (11, 1));
    drop((first, shared, tails));
    let metrics = pool.metrics();
    assert_eq!((metrics.active, metrics.inactive, metrics.free), (0, 11, 1));
    assert_all_available(&pool);
}

#[test]
fn a_child_leaves_before_its_parent() {
    for policy in EvictionKind::ALL {
        let pool = pool_with(policy.build(3), 3);
        let names = chain(1, 0..3);
        drop(store(&pool, &names));
        // z goes and comes again; x and y have been used since, which must not save them alone.
        drop(pool.allocate(1).unwrap());
        assert_eq!(pool.contains(&keys(&names)), [true, true, false], "{policy}");
        drop(store(&pool, &names[2..]));
        pool.touch(&keys(&names[2..]));
        drop(pool.allocate(1).unwrap());
        assert_eq!(pool.contains(&keys(&names)), [true, true, false], "{policy}");
        drop(pool.allocate(2).unwrap());
        assert_eq!(pool.contains(&keys(&names)), [true, false, false], "{policy}");
    }
}

#[test]
fn among_the_continuations_of_a_victim_the_oldest_goes_first() {
    let pool = pool_with(EvictionKind::Fifo.build(4), 4);
    let root = chain(1, 0..1);
    let branch = |n: u128| [Registration { parent: Some(root[0].key.hash), ..chain(n, 0..1)[0] }];
    drop(store(&pool, &root));
    (2..5).for_each(|n| drop(store(&pool, &branch(n))));
    let left = |n: u128| pool.contains(&[branch(n)[0].key])[0];
    drop(pool.allocate(1).unwrap());
    assert_eq!([left(2), left(3), left(4)], [false, true, true]);
}

#[test]
fn the_name_stays_with_the_block_and_never_with_the_slot() {
    let pool = pool(1);
    let key = |n: u8| Some(EngineKey::new(&[n; 36]).unwrap());
    let [first, second] = [1, 2].map(|n| chain(n, 3..4)[0]);
    let first = Registration { engine_key: key(1), ..first };
    drop(store(&pool, &[first]));
    assert_eq!(pool.match_prefix(&[first.key]).registrations(), [first]);
    // The next block in the slot has neither parent nor engine key.
    let second = Registration { parent: None, ..second };
    drop(store(&pool, &[second]));
    assert_eq!(pool.match_prefix(&[second.key]).registrations(), [second]);
    drop(store(&pool, &[first]));
    assert_eq!(pool.match_prefix(&[first.key]).registrations(), [first]);
}

#[test]
fn another_engine_key_under_one_hash_is_another_block() {
    let pool = pool(4);
    let key = |n: u8| EngineKey::new(&[n; 36]).unwrap();
    let name = |n| Registration { engine_key: Some(key(n)), ..chain(1, 0..1)[0] };
    let (one, two) = (store(&pool, &[name(1)]), store(&pool, &[name(2)]));
    let find = |n| pool.match_prefix_with_engine_keys(&[name(1).key], &[key(n)]);
    assert_eq!((find(1).ids(), find(2).len()), (one.ids(), 0));
    assert_eq!(pool.match_prefix_with_engine_keys(&[name(1).key], &[]).len(), 0);
    assert_eq!(two.registrations(), [name(2)]);
    // The stranger never takes over.
    one.quarantine();
    assert!(!pool.contains(&[name(1).key])[0]);
    drop(two);
    assert_eq!(pool.metrics().free, 3);
    pool.self_check().unwrap();
}

#[test]
fn a_reset_forgets_idle_active_and_unfinished_blocks() {
    let (pool, log) = told_pool(6);
    let names = chain(1, 0..6);
    drop(store(&pool, &names[..2]));
    let active = store(&pool, &names[2..4]);
    let unfinished = pool.allocate(1).unwrap();
    let weak = active.downgrade();
    log.take();
    assert_eq!(pool.reset(), 3);
    assert_eq!(log.take(), [("cleared", None)]);
    assert_eq!(pool.contains(&keys(&names)), [false; 6]);
    assert_eq!(active.are_current(), [false, false]);
    assert!(weak.upgrade(0).is_none());
    let (error, unfinished) = pool.register(unfinished, &names[4..5]).unwrap_err();
    assert_eq!(error, PoolError::Stale { tier: Tier::Host, allocated: 0, current: 1 });
    // The new generation has its own block of that name; the old one does not come back.
    let again = store(&pool, &names[2..3]);
    assert_eq!(again.are_duplicates(), [false]);
    drop(active);
    assert_eq!(pool.contains(&keys(&names[2..4])), [true, false]);
    drop((unfinished, again));
    assert_all_available(&pool);
    assert_eq!(pool.reset(), 0);
}

#[test]
fn a_quarantined_slot_is_out_of_use_until_its_memory_was_tested() {
    let pool = pool(2);
    let name = chain(1, 0..1);
    let held = store(&pool, &name);
    let (reader, weak) = (held.clone(), held.downgrade());
    held.quarantine();
    assert!(weak.upgrade(0).is_none() && reader.downgrade().upgrade(0).is_none());
    assert_eq!((pool.match_prefix(&keys(&name)).len(), reader.are_current()), (0, vec![false]));
    reader.clone().quarantine();
    drop(reader);
    assert_eq!((pool.metrics().quarantined, pool.available()), (1, 1));
    assert!(pool.allocate(2).is_err());
    pool.reset();
    assert_eq!(pool.metrics().quarantined, 1);
    pool.take_quarantined().quarantine();
    assert_eq!(pool.metrics().quarantined, 1);
    drop(pool.take_quarantined());
    assert_all_available(&pool);
}

#[test]
fn a_weak_handle_keeps_nothing_and_never_shows_another_block() {
    let pool = pool(1);
    let name = chain(1, 0..1);
    let held = store(&pool, &name);
    let weak = held.downgrade();
    drop(held);
    assert_eq!(weak.upgrade(0).unwrap().registrations(), name);
    assert!(weak.upgrade(1).is_none());
    // An equal block in the same slot is another one.
    drop(pool.allocate(1).unwrap());
    let again = store(&pool, &name);
    assert!(weak.upgrade(0).is_none());
    let weak = again.downgrade();
    drop((again, pool));
    assert!(weak.upgrade(0).is_none());
}

#[test]
fn looking_after_a_block_is_no_use_of_it() {
    for policy in [EvictionKind::Arc, EvictionKind::S3fifo] {
        let pool = pool_with(policy.build(20), 20);
        let key = |n| chain(n, 0..1)[0].key;
        let weak: Vec<_> = (0..20).map(|n| store(&pool, &chain(n, 0..1)).downgrade()).collect();
        // Half is asked for, then all is copied elsewhere, one after the other.
        (0..10).for_each(|n| drop(pool.match_prefix(&[key(n)])));
        for weak in &weak {
            drop(weak.upgrade(0).unwrap());
        }
        drop(pool.allocate(8).unwrap());
        let left: Vec<_> = (0..20).filter(|&n| pool.contains(&[key(n)])[0]).collect();
        assert!(left.iter().copied().take(10).eq(0..10), "{policy}: {left:?}");
    }
}

#[test]
fn a_block_shared_in_its_first_use_counts_as_used() {
    let pool = pool_with(EvictionKind::Arc.build(4), 4);
    let (popular, other) = (chain(1, 0..1), chain(2, 0..1));
    let first = store(&pool, &popular);
    let second = pool.match_prefix(&keys(&popular));
    drop((first, second));
    drop(store(&pool, &other));
    drop(pool.allocate(3).unwrap());
    assert_eq!(pool.contains(&[popular[0].key, other[0].key]), [true, false]);
}

#[test]
fn a_sink_may_use_the_pool_and_the_last_handle() {
    struct Curious(Mutex<Vec<ImmutableSlots>>, std::sync::OnceLock<SlotPool>);
    impl EventManager for Curious {
        fn block_registered(&self, event: &BlockEvent) {
            let found = self.1.get().unwrap().match_prefix(&[event.key.unwrap()]);
            self.0.lock().unwrap().push(found);
        }
        fn block_evicted(&self, _: &BlockEvent) {
            self.0.lock().unwrap().clear();
        }
    }
    let sink = Arc::new(Curious(Mutex::default(), std::sync::OnceLock::new()));
    let events = Some(Arc::new(EventStream::new(sink.clone())));
    let policy = EvictionKind::Lru.build(2);
    let options = SlotPoolOptions { events, ..SlotPoolOptions::new(Tier::Host, 2, policy) };
    let pool = SlotPool::new(options).unwrap();
    sink.1.set(pool.clone()).unwrap();
    store(&pool, &chain(1, 0..1)).quarantine();
    assert_eq!((pool.metrics().quarantined, pool.metrics().active), (1, 0));
    drop(store(&pool, &chain(2, 0..1)));
    assert_eq!(pool.metrics().active, 1);
}

#[test]
fn gauges_are_of_one_instant_while_others_work() {
    let pool = pool(64);
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..2000_u128 {
                    let names = chain(worker * 7 + round % 5, 0..4);
                    let Ok(slots) = pool.allocate(4) else { continue };
                    let held = pool.register(slots, &names);
                    let found = pool.match_prefix(&keys(&names));
                    match round % 31 {
                        0 => found.quarantine(),
                        1 => drop(pool.take_quarantined()),
                        2 if worker == 0 => drop(pool.reset()),
                        _ => drop(held),
                    }
                }
            });
        }
        for _ in 0..10_000 {
            let metrics = pool.metrics();
            let states = metrics.free
                + metrics.mutable
                + metrics.active
                + metrics.inactive
                + metrics.quarantined;
            assert_eq!(states, metrics.capacity);
            assert!((0.0..=1.0).contains(&metrics.usage()));
        }
    });
    drop(pool.take_quarantined());
    assert_all_available(&pool);
}
