//! The pool's bookkeeping, under its lock: plain data. The rules are in the files beside this one,
//! by verb; none of them takes a lock, makes or drops a handle, or runs a user's sink.

use super::{
    Registration,
    evict::Hunt,
    options::Section,
    section::{Books, Sections},
    slot::{Life, Slot, unpack},
};
use crate::{
    config::Tier,
    events::{EventBlock, EventKind, EventStream},
    eviction::SlotId,
    index::{BlockIndex, Mixer},
    metrics::PoolMetrics,
    sync::Arc,
    tokens::{EngineKey, Key, SequenceHash},
};

/// Slot numbers of one operation; a single block needs no allocation.
pub(super) type Ids = smallvec::SmallVec<[SlotId; 4]>;

pub(super) struct State {
    pub(super) tier: Tier,
    pub(super) sections: Sections,
    /// Up to the last one used so far; the rest of the last section costs no memory yet.
    pub(super) slots: Vec<Slot>,
    /// Hash of each slot's parent, where `has_parent`.
    pub(super) parents: Vec<[u64; 2]>,
    /// Of each slot that a block with an engine key was in, and those below; later ones have none.
    pub(super) engine_keys: Vec<Option<EngineKey>>,
    pub(super) index: BlockIndex,
    pub(super) mixer: Mixer,
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
        sections: Vec<Section>,
        events: Option<Arc<EventStream>>,
    ) -> Option<Self> {
        let sections = Sections::new(sections)?;
        // Room is reserved for all, so that growing never copies; it is committed as it is used.
        let (mut slots, mut parents) = (Vec::new(), Vec::new());
        slots.try_reserve_exact(capacity).ok()?;
        parents.try_reserve_exact(capacity).ok()?;
        let mut state = Self {
            tier,
            sections,
            slots,
            parents,
            engine_keys: Vec::new(),
            index: BlockIndex::new(capacity as u32),
            mixer: Mixer::new(),
            generation: 0,
            totals: PoolMetrics::default(),
            events,
        };
        // Slots of several sections come into use side by side: had the records in between to be
        // written then, an allocation would wait for that.
        let before_last = state.sections.all.last().map_or(0, |last| last.slots().start);
        state.write_records(before_last);
        Some(state)
    }

    pub(super) fn available(&self) -> usize {
        self.sections.sum(Books::available)
    }

    pub(super) fn metrics(&self) -> PoolMetrics {
        let sum = |of: fn(&Books) -> usize| self.sections.sum(of) as u64;
        PoolMetrics {
            capacity: sum(Books::capacity),
            free: sum(Books::free_slots),
            mutable: sum(|books| books.mutable),
            active: sum(|books| books.active),
            inactive: sum(|books| books.inactive),
            quarantined: sum(|books| books.quarantined),
            ..self.totals.clone()
        }
    }

    #[inline]
    pub(super) fn slot(&mut self, id: SlotId) -> &mut Slot {
        &mut self.slots[id as usize]
    }

    // ---- allocation --------------------------------------------------------------------------

    /// Takes `count` slots: free ones first, then ones never used, then victims, of each kind those
    /// of the first section first. The caller knows that there are so many.
    pub(super) fn allocate(&mut self, count: usize, out: &mut Ids) {
        out.reserve(count);
        for books in &mut self.sections.all {
            books.take_free(count - out.len(), out);
        }
        for number in 0..self.sections.all.len() {
            self.take_fresh(number, count - out.len(), out);
        }
        for &id in out.iter() {
            self.slot(id).life = Life::Mutable;
        }
        let mut hunt = Hunt::default();
        while out.len() < count {
            let Some(id) = self.evict_any(&mut hunt) else { break };
            self.hand_out(id);
            out.push(id);
        }
        self.record_allocated(out.iter().copied());
    }

    /// For each of `sections` a slot of the section of that number, taken as `allocate` does; `None`
    /// where it has none to give.
    pub(super) fn allocate_in(&mut self, sections: &[usize]) -> Vec<Option<SlotId>> {
        let taken: Vec<_> = sections.iter().map(|&number| self.take_in(number)).collect();
        self.record_allocated(taken.iter().copied().flatten());
        taken
    }

    fn take_in(&mut self, number: usize) -> Option<SlotId> {
        let mut taken = Ids::new();
        self.sections.all.get_mut(number)?.take_free(1, &mut taken);
        if taken.is_empty() {
            self.take_fresh(number, 1, &mut taken);
        }
        if let Some(&id) = taken.first() {
            self.slot(id).life = Life::Mutable;
            return Some(id);
        }
        let id = self.evict_in(number)?;
        self.hand_out(id);
        Some(id)
    }

    /// A slot that was nobody's is its owner's.
    fn hand_out(&mut self, id: SlotId) {
        self.slot(id).life = Life::Mutable;
        self.sections.of(id).mutable += 1;
    }

    fn take_fresh(&mut self, number: usize, count: usize, out: &mut Ids) {
        let books = &mut self.sections.all[number];
        books.take_fresh(count, out);
        let end = books.used().end;
        self.write_records(end);
    }

    /// Makes the slots below `end` ready to be used.
    fn write_records(&mut self, end: SlotId) {
        if self.slots.len() < end as usize {
            self.slots.resize(end as usize, Slot::free());
            self.parents.resize(end as usize, [0; 2]);
        }
    }

    fn record_allocated(&mut self, ids: impl Iterator<Item = SlotId> + Clone) {
        self.totals.allocations += ids.clone().count() as u64;
        if let Some(events) = &self.events {
            events.record(EventKind::Allocated, self.tier, ids.map(EventBlock::slot));
        }
    }

    /// Returns slots that were allocated and not registered.
    pub(super) fn free_mutable(&mut self, ids: &[SlotId]) {
        for &id in ids {
            self.slot(id).life = Life::Free;
        }
        let mut rest = ids;
        while let Some((section, run, before)) = self.sections.last_run(rest) {
            section.mutable -= run.len();
            section.free.extend(run.iter().rev());
            rest = before;
        }
    }

    pub(super) fn free(&mut self, id: SlotId) {
        self.slot(id).life = Life::Free;
        self.sections.of(id).free.push(id);
    }

    // ---- names and events --------------------------------------------------------------------

    #[inline]
    pub(super) fn mix(&self, key: Key) -> u64 {
        mix(&self.mixer, key)
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

/// The 64 bits that index and policies know `key` by.
#[inline]
pub(super) fn mix(mixer: &Mixer, key: Key) -> u64 {
    mixer.mix(key.hash.as_u128(), key.group)
}
