//! The pool as threads share it: the state, its lock, and the verbs.

use std::{fmt, ops::Range};

use super::{
    ImmutableSlots, MutableSlots, PoolError, Registration, SectionMetrics, SlotPoolOptions,
    section::Books,
    state::{Ids, State},
};
use crate::{
    config::Tier,
    events::EventStream,
    eviction::SlotId,
    metrics::PoolMetrics,
    sync::{Arc, Mutex, MutexGuard, Weak},
    tokens::{EngineKey, Key},
};

/// How much [`SlotPool::trigger_eviction`] drops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EvictionMode {
    /// Inactive blocks, until an eighth of the pool is free, of each of its sections if there are
    /// several.
    Normal,
    /// Every inactive block.
    Aggressive,
}

/// The slots of one tier. Clones share them.
#[derive(Clone)]
pub struct SlotPool {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    tier: Tier,
    sections: Vec<Range<SlotId>>,
    state: Mutex<State>,
    events: Option<Arc<EventStream>>,
}

/// A handle's way back that keeps no pool alive.
#[derive(Clone)]
pub(super) struct WeakPool(Weak<Shared>);

impl WeakPool {
    pub(super) fn upgrade(&self) -> Option<SlotPool> {
        self.0.upgrade().map(|shared| SlotPool { shared })
    }
}

impl SlotPool {
    /// Most slots a pool can have: slot numbers are 32 bits and the index needs headroom.
    pub const MAX_CAPACITY: usize = 1 << 30;

    /// A pool of free slots.
    ///
    /// # Errors
    /// [`PoolError::InvalidCapacity`], [`PoolError::OutOfMemory`].
    pub fn new(options: SlotPoolOptions) -> Result<Self, PoolError> {
        let ranges = options.ranges()?;
        let capacity = ranges.iter().map(Range::len).sum();
        let SlotPoolOptions { tier, sections, events } = options;
        let events = events.filter(|events| events.is_attached());
        let Some(state) = State::new(tier, capacity, sections, events.clone()) else {
            let bytes = capacity * State::BYTES_PER_SLOT;
            return Err(PoolError::OutOfMemory { tier, capacity, bytes });
        };
        let state = Mutex::new(state);
        Ok(Self { shared: Arc::new(Shared { tier, sections: ranges, state, events }) })
    }

    /// The tier it serves.
    pub fn tier(&self) -> Tier {
        self.shared.tier
    }

    /// Number of slots.
    pub fn capacity(&self) -> usize {
        self.shared.sections.last().map_or(0, |last| last.end as usize)
    }

    /// The slots of each section, in order.
    pub fn sections(&self) -> &[Range<SlotId>] {
        &self.shared.sections
    }

    /// Number of the section that `slot` is in; `None` when the pool has no such slot.
    pub fn section_of(&self, slot: SlotId) -> Option<usize> {
        let section = self.sections().partition_point(|section| section.end <= slot);
        (section < self.sections().len()).then_some(section)
    }

    /// Takes `count` slots for writing, all or none, evicting inactive blocks for them if need be.
    /// They are of any section, the first one's first.
    ///
    /// # Errors
    /// [`PoolError::NotEnoughBlocksAvailable`].
    pub fn allocate(&self, count: usize) -> Result<MutableSlots, PoolError> {
        self.with(|state| {
            let available = state.available();
            if count > available {
                state.totals.allocation_failures += 1;
                return Err(PoolError::NotEnoughBlocksAvailable {
                    tier: self.tier(),
                    requested: count,
                    available,
                    capacity: self.capacity(),
                });
            }
            Ok(self.take(state, count))
        })
    }

    /// Takes as many slots as there are, at most `count`, of any section.
    pub fn allocate_up_to(&self, count: usize) -> MutableSlots {
        self.with(|state| self.take(state, count.min(state.available())))
    }

    /// For each of `sections` takes a slot of the section of that number, in one step, evicting
    /// inactive blocks of that section if need be; `None` where it has neither a free slot nor an
    /// inactive block, or where the pool has no such section. Elsewhere a block goes only because it
    /// continues one that goes here; its slot is free then.
    pub fn allocate_in(&self, sections: &[usize]) -> Vec<Option<MutableSlots>> {
        self.with(|state| {
            let generation = state.generation;
            let slots = state.allocate_in(sections).into_iter();
            let one = |id| MutableSlots::new(self.clone(), Ids::from_slice(&[id]), generation);
            slots.map(|slot| slot.map(one)).collect()
        })
    }

    fn take(&self, state: &mut State, count: usize) -> MutableSlots {
        let mut ids = Ids::new();
        state.allocate(count, &mut ids);
        MutableSlots::new(self.clone(), ids, state.generation)
    }

    /// Names blocks that are complete; from now on lookups find them. The batch comes back with
    /// the error when it is refused, so nothing is lost.
    ///
    /// # Errors
    /// [`PoolError::LengthMismatch`], [`PoolError::Stale`] after a reset,
    /// [`PoolError::ForeignHandle`].
    pub fn register(
        &self,
        blocks: MutableSlots,
        registrations: &[Registration],
    ) -> Result<ImmutableSlots, (PoolError, MutableSlots)> {
        if !self.owns(blocks.pool()) {
            return Err((PoolError::ForeignHandle { tier: self.tier() }, blocks));
        }
        if blocks.len() != registrations.len() {
            let error = PoolError::LengthMismatch {
                tier: self.tier(),
                blocks: blocks.len(),
                registrations: registrations.len(),
            };
            return Err((error, blocks));
        }
        self.with(|state| {
            if blocks.generation() != state.generation {
                let error = PoolError::Stale {
                    tier: self.tier(),
                    allocated: blocks.generation(),
                    current: state.generation,
                };
                return Err((error, blocks));
            }
            let ids = blocks.into_ids();
            state.register(&ids, registrations);
            Ok(ImmutableSlots::new(self.clone(), ids))
        })
    }

    /// The longest prefix of `keys` that is registered, pinned in the same step.
    pub fn match_prefix(&self, keys: &[Key]) -> ImmutableSlots {
        self.match_blocks(keys, None)
    }

    /// Like [`match_prefix`](Self::match_prefix); a block whose engine key is not the one at its
    /// position is a miss. Positions past the end of `engine_keys` want a block without one.
    pub fn match_prefix_with_engine_keys(
        &self,
        keys: &[Key],
        engine_keys: &[EngineKey],
    ) -> ImmutableSlots {
        self.match_blocks(keys, Some(engine_keys))
    }

    fn match_blocks(&self, keys: &[Key], engine_keys: Option<&[EngineKey]>) -> ImmutableSlots {
        self.with(|state| {
            let mut ids = Ids::new();
            state.match_prefix(keys, engine_keys, &mut ids);
            ImmutableSlots::new(self.clone(), ids)
        })
    }

    /// Which of `keys` are registered now. Counts as no access and pins nothing: the answer may be
    /// old when it arrives.
    pub fn contains(&self, keys: &[Key]) -> Vec<bool> {
        self.with(|state| state.contains(keys))
    }

    /// Position of the first of `keys` that is registered now. Counts as no access.
    pub fn first_present(&self, keys: &[Key]) -> Option<usize> {
        self.with(|state| state.first_present(keys))
    }

    /// Tells the policy that the blocks of `keys` were used, the last first; returns how many are
    /// there.
    pub fn touch(&self, keys: &[Key]) -> usize {
        self.with(|state| state.touch(keys))
    }

    /// Drops inactive blocks; returns how many.
    pub fn trigger_eviction(&self, mode: EvictionMode) -> usize {
        self.with(|state| {
            state.evict_until_free(|capacity| match mode {
                EvictionMode::Normal => capacity.div_ceil(8),
                EvictionMode::Aggressive => usize::MAX,
            })
        })
    }

    /// Forgets every block and starts a new generation. Blocks in use serve their readers to the
    /// end and are then free; blocks allocated before can no longer be registered. Returns how
    /// many slots are still held.
    pub fn reset(&self) -> usize {
        self.with(State::reset)
    }

    /// Takes all quarantined slots, to test their memory: dropping the batch puts them back into
    /// service, [`MutableSlots::quarantine`] out of it again.
    pub fn take_quarantined(&self) -> MutableSlots {
        self.with(|state| {
            let mut ids = Ids::new();
            state.take_quarantined(&mut ids);
            MutableSlots::new(self.clone(), ids, state.generation)
        })
    }

    /// Takes one quarantined slot, to test its memory, as [`take_quarantined`](Self::take_quarantined)
    /// takes all. `None` when it is not quarantined; one that still has readers is not yet. Tells
    /// nobody of events, so that it may be asked under a lock.
    pub(crate) fn take_quarantined_slot(&self, id: SlotId) -> Option<MutableSlots> {
        let mut state = self.lock();
        let taken = state.take_quarantined_slot(id);
        taken.then(|| MutableSlots::new(self.clone(), Ids::from_iter([id]), state.generation))
    }

    /// Slots that an allocation can have now: free and inactive.
    pub fn available(&self) -> usize {
        self.with(|state| state.available())
    }

    /// Where the slots are and what the pool has done, from one instant.
    pub fn metrics(&self) -> PoolMetrics {
        self.with(|state| state.metrics())
    }

    /// Where the slots of each section are, from one instant.
    pub fn section_metrics(&self) -> Vec<SectionMetrics> {
        self.with(|state| state.sections.all.iter().map(Books::metrics).collect())
    }

    /// Name of the eviction policy, the first section's.
    pub fn policy(&self) -> &'static str {
        self.with(|state| state.sections.all.first().map_or("", Books::policy_name))
    }

    /// Resets since the pool was made.
    pub fn generation(&self) -> u64 {
        self.with(|state| state.generation)
    }

    /// Recounts every slot, link and list entry against the books. Reports; repairs nothing.
    ///
    /// # Errors
    /// [`PoolError::SelfCheck`] with what does not add up.
    pub fn self_check(&self) -> Result<(), PoolError> {
        self.with(|state| state.self_check())
    }

    // ---- for handles -------------------------------------------------------------------------

    pub(super) fn downgrade(&self) -> WeakPool {
        WeakPool(Arc::downgrade(&self.shared))
    }

    pub(super) fn owns(&self, other: &SlotPool) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }

    /// Runs `verb` under the lock, then delivers the events it recorded.
    pub(super) fn with<T>(&self, verb: impl FnOnce(&mut State) -> T) -> T {
        let result = verb(&mut self.lock());
        if let Some(events) = &self.shared.events {
            events.deliver();
        }
        result
    }
}

impl fmt::Debug for SlotPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotPool")
            .field("tier", &self.tier())
            .field("capacity", &self.capacity())
            .field("available", &self.lock().available())
            .finish_non_exhaustive()
    }
}
