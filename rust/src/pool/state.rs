//! The pool's bookkeeping, under its lock: plain data. The rules are in the files beside this one,
//! by verb; none of them takes a lock, makes or drops a handle, or runs a user's sink.

use super::{
    Registration,
    slot::{Life, Slot, unpack},
};
use crate::{
    config::Tier,
    events::{EventBlock, EventKind, EventStream},
    eviction::{EvictionPolicy, SlotId},
    index::{BlockIndex, Mixer},
    metrics::PoolMetrics,
    sync::Arc,
    tokens::{EngineKey, Key, SequenceHash},
};

/// Slot numbers of one operation; a single block needs no allocation.
pub(super) type Ids = smallvec::SmallVec<[SlotId; 4]>;

pub(super) struct State {
    pub(super) tier: Tier,
    pub(super) capacity: usize,
    /// Slots used so far. Those above have never been used and cost no memory yet.
    pub(super) slots: Vec<Slot>,
    /// Hash of each slot's parent, where `has_parent`.
    pub(super) parents: Vec<[u64; 2]>,
    /// Of each slot that a block with an engine key was in, and those below; later ones have none.
    pub(super) engine_keys: Vec<Option<EngineKey>>,
    /// Free slots that have been used; the last one freed on top, whose memory is warm.
    pub(super) free: Vec<SlotId>,
    pub(super) index: BlockIndex,
    pub(super) mixer: Mixer,
    pub(super) policy: Box<dyn EvictionPolicy>,
    /// Victims that the policy has given up, each continued by the one above it: the top goes
    /// first. Entries whose slots have been used since are skipped.
    pub(super) condemned: Vec<SlotId>,
    pub(super) mutable: usize,
    pub(super) active: usize,
    pub(super) inactive: usize,
    pub(super) quarantined: usize,
    pub(super) generation: u64,
    /// What only grows; the gauges in it are filled in by `metrics`.
    pub(super) totals: PoolMetrics,
    pub(super) events: Option<Arc<EventStream>>,
}

impl State {
    /// What is reserved for each slot before it is used: its record, its parent, its index entry.
    pub(super) const BYTES_PER_SLOT: usize = size_of::<Slot>() + 2 * size_of::<[u64; 2]>();

    /// `None` when there is no memory for so many slots.
    pub(super) fn new(
        tier: Tier,
        capacity: usize,
        policy: Box<dyn EvictionPolicy>,
        events: Option<Arc<EventStream>>,
    ) -> Option<Self> {
        // Room is reserved for all, so that growing never copies; it is committed as it is used.
        let (mut slots, mut parents, mut free) = (Vec::new(), Vec::new(), Vec::new());
        slots.try_reserve_exact(capacity).ok()?;
        parents.try_reserve_exact(capacity).ok()?;
        free.try_reserve_exact(capacity).ok()?;
        Some(Self {
            tier,
            capacity,
            slots,
            parents,
            engine_keys: Vec::new(),
            free,
            index: BlockIndex::new(capacity as u32),
            mixer: Mixer::new(),
            policy,
            condemned: Vec::new(),
            mutable: 0,
            active: 0,
            inactive: 0,
            quarantined: 0,
            generation: 0,
            totals: PoolMetrics::default(),
            events,
        })
    }

    /// Slots that hold nothing.
    pub(super) fn free_slots(&self) -> usize {
        self.free.len() + (self.capacity - self.slots.len())
    }

    pub(super) fn available(&self) -> usize {
        self.free_slots() + self.inactive
    }

    pub(super) fn metrics(&self) -> PoolMetrics {
        PoolMetrics {
            capacity: self.capacity as u64,
            free: self.free_slots() as u64,
            mutable: self.mutable as u64,
            active: self.active as u64,
            inactive: self.inactive as u64,
            quarantined: self.quarantined as u64,
            ..self.totals.clone()
        }
    }

    #[inline]
    pub(super) fn slot(&mut self, id: SlotId) -> &mut Slot {
        &mut self.slots[id as usize]
    }

    // ---- allocation --------------------------------------------------------------------------

    /// Takes `count` slots: free ones first, then ones never used, then victims. The caller knows
    /// that there are so many.
    pub(super) fn allocate(&mut self, count: usize, out: &mut Ids) {
        out.reserve(count);
        for _ in 0..count {
            let Some(id) = self.free.pop().or_else(|| self.fresh()).or_else(|| self.evict_one())
            else {
                break;
            };
            self.slot(id).life = Life::Mutable;
            out.push(id);
        }
        self.mutable += out.len();
        self.totals.allocations += out.len() as u64;
        if let Some(events) = &self.events {
            events.record(
                EventKind::Allocated,
                self.tier,
                out.iter().copied().map(EventBlock::slot),
            );
        }
    }

    fn fresh(&mut self) -> Option<SlotId> {
        (self.slots.len() < self.capacity).then(|| {
            self.slots.push(Slot::free());
            self.parents.push([0; 2]);
            (self.slots.len() - 1) as SlotId
        })
    }

    /// Returns slots that were allocated and not registered.
    pub(super) fn free_mutable(&mut self, ids: &[SlotId]) {
        self.mutable -= ids.len();
        for &id in ids.iter().rev() {
            self.free(id);
        }
    }

    pub(super) fn free(&mut self, id: SlotId) {
        self.slot(id).life = Life::Free;
        self.free.push(id);
    }

    // ---- names and events --------------------------------------------------------------------

    #[inline]
    pub(super) fn mix(&self, key: Key) -> u64 {
        self.mixer.mix(key.hash.as_u128(), key.group)
    }

    /// What the policy knows the block in a slot by.
    #[inline]
    pub(super) fn digest(&self, id: SlotId) -> u64 {
        self.mix(self.slots[id as usize].key())
    }

    pub(super) fn registration(&self, id: SlotId) -> Registration {
        Registration {
            key: self.slots[id as usize].key(),
            parent: self.parent_hash(id),
            engine_key: self.engine_key(id),
        }
    }

    fn parent_hash(&self, id: SlotId) -> Option<SequenceHash> {
        self.slots[id as usize].has_parent.then(|| unpack(self.parents[id as usize]))
    }

    pub(super) fn engine_key(&self, id: SlotId) -> Option<EngineKey> {
        self.engine_keys.get(id as usize).copied().flatten()
    }

    /// Notes what happened to blocks that have names, for delivery after the lock.
    pub(super) fn record(&self, kind: EventKind, ids: &[SlotId]) {
        if let Some(events) = &self.events {
            let blocks = ids.iter().map(|&id| {
                let Registration { key, parent, engine_key } = self.registration(id);
                EventBlock { block_id: id, key: Some(key), parent, engine_key }
            });
            events.record(kind, self.tier, blocks);
        }
    }
}
