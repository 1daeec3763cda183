//! Calls at the edge of what there is, and calls that make no sense.

use dynamo_llm::block_manager::{
    SlotId, Tier,
    config::EvictionKind,
    eviction::EvictionPolicy,
    pool::{EvictionMode, ImmutableSlots, MutableSlots, PoolError, SlotPool, SlotPoolOptions},
};

use crate::{assert_all_available, chain, pool, pool_with, store};

/// Names slots that cannot go, or none.
pub(crate) struct Wrong(pub(crate) Option<SlotId>);

impl EvictionPolicy for Wrong {
    fn name(&self) -> &'static str {
        "wrong"
    }
    fn insert(&mut self, _: SlotId, _: u64) {}
    fn touch(&mut self, _: SlotId) {}
    fn pin(&mut self, _: SlotId) {}
    fn unpin(&mut self, _: SlotId) {}
    fn remove(&mut self, _: SlotId) {}
    fn evict(&mut self) -> Option<SlotId> {
        self.0
    }
    fn evicted(&mut self, _: SlotId) {}
    fn len(&self) -> usize {
        usize::MAX
    }
}

#[test]
fn a_policy_that_errs_is_overruled_and_reported() {
    for answer in [None, Some(0), Some(7), Some(SlotId::MAX)] {
        let pool = pool_with(Box::new(Wrong(answer)), 4);
        let held = store(&pool, &chain(1, 0..1));
        assert_eq!(held.ids(), [0]);
        drop(store(&pool, &chain(2, 0..3)));
        let slots = pool.allocate(3).unwrap();
        assert_eq!((slots.len(), held.registrations()), (3, chain(1, 0..1)));
        assert!(matches!(pool.self_check(), Err(PoolError::SelfCheck { .. })));
    }
}

#[test]
fn no_blocks_at_all_is_a_batch_too() {
    let pool = pool(1);
    let none = pool.allocate(0).unwrap();
    assert!(none.is_empty());
    let none = pool.register(none, &[]).unwrap();
    assert_eq!((none.clone().len(), none.downgrade().len()), (0, 0));
    assert!(none.slice(3..9).is_empty() && none.into_singles().next().is_none());
    assert!(pool.match_prefix(&[]).is_empty() && pool.contains(&[]).is_empty());
    assert_eq!((pool.touch(&[]), pool.first_present(&[])), (0, None));
    assert!(MutableSlots::join([]).is_none() && ImmutableSlots::join([]).is_none());
    assert!(pool.take_quarantined().is_empty());
    assert_all_available(&pool);
}

#[test]
fn more_than_there_is_is_refused_with_numbers() {
    let pool = pool(4);
    let _held = pool.allocate(1).unwrap();
    for count in [4, usize::MAX] {
        let error = pool.allocate(count).unwrap_err();
        let expected = format!(
            "host pool: {count} blocks requested, 3 available of 4; release blocks or configure a \
             larger tier"
        );
        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(pool.allocate_up_to(usize::MAX).len(), 3);
    assert_eq!(pool.metrics().allocation_failures, 2);
}

#[test]
fn a_capacity_no_pool_can_have_is_refused() {
    for capacity in [0, SlotPool::MAX_CAPACITY + 1, usize::MAX] {
        let policy = EvictionKind::Lru.build(1);
        let options = SlotPoolOptions::new(Tier::Host, capacity, policy);
        let error = SlotPool::new(options).unwrap_err();
        assert!(matches!(error, PoolError::InvalidCapacity { .. }), "{error}");
    }
}

#[test]
fn handles_of_another_pool_are_given_back() {
    let (pool, other) = (pool(2), pool(2));
    let slots = other.allocate(1).unwrap();
    let (error, slots) = pool.register(slots, &chain(1, 0..1)).unwrap_err();
    assert_eq!(error, PoolError::ForeignHandle { tier: Tier::Host });
    assert!(!slots.belongs_to(&pool) && slots.belongs_to(&other));
    assert!(MutableSlots::join([pool.allocate(1).unwrap(), slots]).is_none());
    let held = store(&other, &chain(1, 0..1));
    assert!(ImmutableSlots::join([store(&pool, &chain(1, 0..1)), held]).is_none());
    assert_all_available(&pool);
    assert_all_available(&other);
}

#[test]
fn blocks_and_names_must_be_as_many() {
    let pool = pool(2);
    let (error, slots) = pool.register(pool.allocate(2).unwrap(), &chain(1, 0..1)).unwrap_err();
    assert_eq!(error, PoolError::LengthMismatch { tier: Tier::Host, blocks: 2, registrations: 1 });
    drop(slots);
    assert_all_available(&pool);
}

#[test]
fn a_block_that_claims_to_continue_itself_continues_none() {
    let pool = pool(2);
    let mut name = chain(1, 0..1)[0];
    name.parent = Some(name.key.hash);
    drop(store(&pool, &[name, name]));
    pool.self_check().unwrap();
    assert_eq!(pool.trigger_eviction(EvictionMode::Aggressive), 1);
    assert_all_available(&pool);
}
