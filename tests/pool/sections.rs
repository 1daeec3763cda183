//! Pools whose slots are in several sections.

use dynamo_llm::block_manager::{
    SlotId, Tier,
    config::EvictionKind,
    eviction::EvictionPolicy,
    pool::{
        EvictionMode, ImmutableSlots, MutableSlots, PoolError, Registration, Section, SlotPool,
        SlotPoolOptions,
    },
};

use crate::{assert_all_available, chain, keys, refusals::Wrong, store};

fn options(sections: Vec<Section>) -> SlotPoolOptions {
    SlotPoolOptions { tier: Tier::Disk, sections, events: None }
}

fn section(capacity: usize, policy: Box<dyn EvictionPolicy>) -> Section {
    Section { capacity, policy }
}

fn pool(capacities: &[usize]) -> SlotPool {
    let lru = |&capacity: &usize| section(capacity, EvictionKind::Lru.build(capacity as u32));
    SlotPool::new(options(capacities.iter().map(lru).collect())).unwrap()
}

fn ids(slots: &[Option<MutableSlots>]) -> Vec<Option<SlotId>> {
    slots.iter().map(|slot| slot.as_ref().map(|slot| slot.ids()[0])).collect()
}

/// One handle for each block, in a slot of the section beside its name.
fn store_in(pool: &SlotPool, sections: &[usize], names: &[Registration]) -> Vec<ImmutableSlots> {
    let slots = MutableSlots::join(pool.allocate_in(sections).into_iter().flatten()).unwrap();
    pool.register(slots, names).unwrap().into_singles().collect()
}

/// Free and inactive slots of each section.
fn free_and_inactive(pool: &SlotPool) -> Vec<(u64, u64)> {
    pool.self_check().unwrap();
    pool.section_metrics().iter().map(|section| (section.free, section.inactive)).collect()
}

#[test]
fn sections_follow_each_other() {
    let pool = pool(&[3, 1, 2]);
    assert_eq!(pool.sections(), [0..3, 3..4, 4..6]);
    assert_eq!(pool.capacity(), 6);
    let found: Vec<_> = (0..7).map(|slot| pool.section_of(slot)).collect();
    assert_eq!(found, [Some(0), Some(0), Some(0), Some(1), Some(2), Some(2), None]);
    assert_eq!(pool.section_of(SlotId::MAX), None);
}

#[test]
fn a_slot_comes_from_the_section_that_was_named() {
    let pool = pool(&[2, 2]);
    let slots = pool.allocate_in(&[1, 0, 1, 1, 2, usize::MAX, 0]);
    // Slots that were never used come in order; sections that are used up or not there give none.
    assert_eq!(ids(&slots), [Some(2), Some(0), Some(3), None, None, None, Some(1)]);
    assert!(pool.allocate_in(&[0, 1]).iter().all(Option::is_none));
    assert!(pool.allocate_in(&[]).is_empty());
    let metrics = pool.metrics();
    assert_eq!((metrics.mutable, metrics.allocations), (4, 4));
    drop(slots);
    assert_eq!(free_and_inactive(&pool), [(2, 0), (2, 0)]);
    assert_all_available(&pool);
}

#[test]
fn an_allocation_that_names_none_takes_the_first_section_first() {
    let pool = pool(&[2, 2]);
    drop(store_in(&pool, &[0, 1], &chain(1, 0..2)));
    // What is free, then the idle blocks.
    assert_eq!(pool.allocate(2).unwrap().ids(), [1, 3]);
    assert_eq!(pool.allocate_up_to(9).len(), 4);
    let error = pool.allocate(5).unwrap_err();
    assert!(
        matches!(error, PoolError::NotEnoughBlocksAvailable { available: 4, capacity: 4, .. }),
        "{error}"
    );
}

#[test]
fn room_in_one_section_costs_no_block_of_another() {
    for kind in EvictionKind::ALL {
        let build = || section(2, kind.build(2));
        let pool = SlotPool::new(options(vec![build(), build()])).unwrap();
        let [a, b, c, d] = [1, 2, 3, 4].map(|sequence| chain(sequence, 0..1)[0]);
        drop(store_in(&pool, &[0, 1, 0, 1], &[a, b, c, d]));
        pool.touch(&[a.key, c.key]);
        let held = pool.allocate_in(&[0, 0, 0]);
        assert_eq!(held.iter().flatten().count(), 2);
        assert_eq!(pool.contains(&keys(&[a, b, c, d])), [false, true, false, true], "{kind}");
        assert_eq!(free_and_inactive(&pool), [(0, 0), (0, 2)]);
    }
}

#[test]
fn what_continues_a_victim_in_another_section_goes_before_it() {
    let pool = pool(&[2, 4]);
    let names = chain(1, 0..4);
    let other = chain(2, 0..1);
    let blocks = store_in(&pool, &[0, 1, 1, 0], &names);
    // The first to be released is the first to go: the root.
    blocks.into_iter().for_each(drop);
    drop(store_in(&pool, &[1], &other));
    // Nothing has to go in the other section: the continuation is in this one.
    let last = pool.allocate_in(&[0]);
    assert_eq!(pool.contains(&keys(&names)), [true, true, true, false]);
    assert_eq!(free_and_inactive(&pool), [(0, 1), (1, 3)]);
    // Now the root itself has to go, and what lies behind it before.
    let root = pool.allocate_in(&[0]);
    assert_eq!((ids(&last), ids(&root)), (vec![Some(1)], vec![Some(0)]));
    assert_eq!(pool.contains(&keys(&names)), [false; 4]);
    assert_eq!(pool.contains(&keys(&other)), [true]);
    assert_eq!(free_and_inactive(&pool), [(0, 0), (3, 1)]);
    assert_eq!(pool.metrics().evictions, 4);
}

#[test]
fn a_victim_waits_for_nobody_in_use() {
    let pool = pool(&[1, 1]);
    let names = chain(1, 0..2);
    let mut blocks = store_in(&pool, &[0, 1], &names);
    let child = blocks.pop();
    drop(blocks);
    assert_eq!(ids(&pool.allocate_in(&[0, 1])), [Some(0), None]);
    assert_eq!(pool.contains(&keys(&names)), [false, true]);
    drop(child);
    assert_all_available(&pool);
}

#[test]
fn a_block_that_waited_in_vain_is_used_like_any_other() {
    let pool = pool(&[2, 1]);
    let names = chain(1, 0..3);
    store_in(&pool, &[0, 1, 0], &names).into_iter().for_each(drop);
    // The root is given up, its last continuation goes; between them lies the other section.
    drop(pool.allocate_in(&[0]));
    let found = pool.match_prefix(&keys(&names));
    assert_eq!(found.len(), 2);
    assert_eq!(ids(&pool.allocate_in(&[1, 0])), [None, Some(1)]);
    drop(found);
    assert_eq!(ids(&pool.allocate_in(&[1])), [Some(2)]);
    assert_eq!(pool.contains(&keys(&names)), [true, false, false]);
    assert_all_available(&pool);
}

#[test]
fn a_long_chain_elsewhere_costs_its_length() {
    const LENGTH: usize = 20_000;
    let pool = pool(&[1, LENGTH]);
    let names = chain(1, 0..LENGTH as u128 + 1);
    let sections: Vec<_> = std::iter::once(0).chain(std::iter::repeat_n(1, LENGTH)).collect();
    drop(store_in(&pool, &sections, &names));
    // Were each found from the root again, this would be 200 million steps.
    assert_eq!(ids(&pool.allocate_in(&[0])), [Some(0)]);
    assert_eq!(free_and_inactive(&pool), [(1, 0), (LENGTH as u64, 0)]);
}

#[test]
fn room_is_made_in_each_section() {
    let pool = pool(&[16, 8, 1]);
    for (sequence, section) in [(1, 0), (2, 1), (3, 2)] {
        let names = chain(sequence, 0..pool.sections()[section].len() as u128);
        drop(store_in(&pool, &vec![section; names.len()], &names));
    }
    assert_eq!(pool.trigger_eviction(EvictionMode::Normal), 4);
    assert_eq!(free_and_inactive(&pool), [(2, 14), (1, 7), (1, 0)]);
    assert_eq!(pool.trigger_eviction(EvictionMode::Aggressive), 21);
    assert_all_available(&pool);
}

#[test]
fn each_section_has_books_of_its_own() {
    let pool = pool(&[3, 4]);
    let mut blocks = store_in(&pool, &[1, 1, 0], &chain(1, 0..3));
    let _written = pool.allocate_in(&[1]);
    blocks.pop().unwrap().quarantine();
    drop(blocks.pop());
    let states = |section: usize| {
        let metrics = &pool.section_metrics()[section];
        [metrics.free, metrics.mutable, metrics.active, metrics.inactive, metrics.quarantined]
    };
    assert_eq!((states(0), states(1)), ([2, 0, 0, 0, 1], [1, 1, 1, 1, 0]));
    assert_eq!(pool.reset(), 2);
    assert_eq!((states(0), states(1)), ([2, 0, 0, 0, 1], [2, 1, 1, 0, 0]));
    let bad = pool.take_quarantined();
    assert_eq!((states(0), bad.ids().len()), ([2, 1, 0, 0, 0], 1));
    bad.quarantine();
    drop(blocks);
    assert_eq!((states(0), states(1)), ([2, 0, 0, 0, 1], [3, 1, 0, 0, 0]));
    pool.self_check().unwrap();
}

#[test]
fn a_policy_cannot_give_up_another_sections_blocks() {
    // The number is of a slot of the pool, not of the section; the last one overflows.
    for answer in [None, Some(2), Some(3), Some(SlotId::MAX)] {
        let wrong = || section(2, Box::new(Wrong(answer)));
        let pool = SlotPool::new(options(vec![wrong(), wrong()])).unwrap();
        drop(store(&pool, &chain(1, 0..4)));
        // The last of the chain first, whoever was named.
        assert_eq!(ids(&pool.allocate_in(&[1, 1])), [Some(3), Some(2)], "{answer:?}");
        assert_eq!(pool.contains(&keys(&chain(1, 0..4))), [true, true, false, false]);
    }
}

#[test]
fn sections_no_pool_can_have_are_refused() {
    let max = SlotPool::MAX_CAPACITY;
    let refused: [(&[usize], usize); 5] = [
        (&[], 0),
        (&[4, 0, 4], 0),
        (&[max, 1], max + 1),
        (&[1, usize::MAX], usize::MAX),
        (&[max / 2 + 1, max / 2], max + 1),
    ];
    for (capacities, named) in refused {
        let build = |&capacity: &usize| section(capacity, EvictionKind::Lru.build(1));
        let error = SlotPool::new(options(capacities.iter().map(build).collect())).unwrap_err();
        let expected = PoolError::InvalidCapacity { tier: Tier::Disk, capacity: named, max };
        assert_eq!(error, expected);
    }
}
