//! The books of a section: which of its slots are free, how many are in which state, and whom its
//! policy would give up.
//!
//! Everything here is called by the pool's slot numbers; the policy alone counts from the section's
//! own first slot. Records, names and chains are the pool's: they know no sections.

use std::ops::Range;

use super::{options::Section, state::Ids};
use crate::eviction::{EvictionPolicy, SlotId};

/// Where the slots of one section of a pool are, at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SectionMetrics {
    /// Its slots: as many as the five numbers below add up to.
    pub slots: Range<SlotId>,
    /// Slots that hold nothing.
    pub free: u64,
    /// Slots that somebody is filling.
    pub mutable: u64,
    /// Slots of finished blocks that somebody holds.
    pub active: u64,
    /// Slots of registered blocks that nobody holds: they can be matched and evicted.
    pub inactive: u64,
    /// Slots kept out of use because their bytes failed a check or a copy's end is not known.
    pub quarantined: u64,
}

pub(super) struct Books {
    base: SlotId,
    capacity: usize,
    /// Slots used so far, the first of the section. Those above have never been used.
    used: usize,
    /// Free slots that have been used; the last one freed on top, whose memory is warm.
    pub(super) free: Vec<SlotId>,
    pub(super) mutable: usize,
    pub(super) active: usize,
    pub(super) inactive: usize,
    pub(super) quarantined: usize,
    policy: Box<dyn EvictionPolicy>,
    /// Victims that the policy has given up and that wait for what continues them, each for the one
    /// above it and what lies between in other sections: the top goes first. Entries whose slots have
    /// been used since are skipped.
    pub(super) condemned: Vec<SlotId>,
}

impl Books {
    /// `None` when there is no memory for so many slots.
    pub(super) fn new(base: SlotId, section: Section) -> Option<Self> {
        let Section { capacity, policy } = section;
        let mut free = Vec::new();
        free.try_reserve_exact(capacity).ok()?;
        Some(Self {
            base,
            capacity,
            used: 0,
            free,
            mutable: 0,
            active: 0,
            inactive: 0,
            quarantined: 0,
            policy,
            condemned: Vec::new(),
        })
    }

    pub(super) fn slots(&self) -> Range<SlotId> {
        self.base..self.base + self.capacity as SlotId
    }

    /// The slots that have been used.
    pub(super) fn used(&self) -> Range<SlotId> {
        self.base..self.base + self.used as SlotId
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Slots that hold nothing.
    pub(super) fn free_slots(&self) -> usize {
        self.free.len() + (self.capacity - self.used)
    }

    pub(super) fn available(&self) -> usize {
        self.free_slots() + self.inactive
    }

    pub(super) fn metrics(&self) -> SectionMetrics {
        SectionMetrics {
            slots: self.slots(),
            free: self.free_slots() as u64,
            mutable: self.mutable as u64,
            active: self.active as u64,
            inactive: self.inactive as u64,
            quarantined: self.quarantined as u64,
        }
    }

    /// Takes at most `count` free slots that have been used.
    pub(super) fn take_free(&mut self, count: usize, out: &mut Ids) {
        let kept = self.free.len().saturating_sub(count);
        self.mutable += self.free.len() - kept;
        out.extend(self.free.drain(kept..).rev());
    }

    /// Takes at most `count` slots that have never been used.
    pub(super) fn take_fresh(&mut self, count: usize, out: &mut Ids) {
        let first = self.used().end;
        let count = count.min(self.capacity - self.used);
        self.used += count;
        self.mutable += count;
        out.extend(first..self.used().end);
    }

    // ---- the policy --------------------------------------------------------------------------

    pub(super) fn policy_name(&self) -> &'static str {
        self.policy.name()
    }

    /// Blocks that the policy has as evictable.
    pub(super) fn evictable(&self) -> usize {
        self.policy.len()
    }

    #[inline]
    pub(super) fn insert(&mut self, id: SlotId, digest: u64) {
        self.policy.insert(id - self.base, digest);
    }

    #[inline]
    pub(super) fn touch(&mut self, id: SlotId) {
        self.policy.touch(id - self.base);
    }

    #[inline]
    pub(super) fn pin(&mut self, id: SlotId) {
        self.policy.pin(id - self.base);
    }

    #[inline]
    pub(super) fn hold(&mut self, id: SlotId) {
        self.policy.hold(id - self.base);
    }

    #[inline]
    pub(super) fn unpin(&mut self, id: SlotId) {
        self.policy.unpin(id - self.base);
    }

    #[inline]
    pub(super) fn remove(&mut self, id: SlotId) {
        self.policy.remove(id - self.base);
    }

    #[inline]
    pub(super) fn evicted(&mut self, id: SlotId) {
        self.policy.evicted(id - self.base);
    }

    /// The policy's choice, if it is one of the section's slots.
    #[inline]
    pub(super) fn evict(&mut self) -> Option<SlotId> {
        let chosen = self.policy.evict()?;
        ((chosen as usize) < self.capacity).then(|| self.base + chosen)
    }
}

/// The sections of a pool, by number and by slot.
pub(super) struct Sections {
    pub(super) all: Vec<Books>,
    /// First slots of all but the first, so that a pool of one section has nothing to search.
    bases: Vec<SlotId>,
}

impl Sections {
    /// `None` when there is no memory for so many slots.
    pub(super) fn new(sections: Vec<Section>) -> Option<Self> {
        let mut all: Vec<Books> = Vec::with_capacity(sections.len());
        for section in sections {
            let base = all.last().map_or(0, |books| books.slots().end);
            all.push(Books::new(base, section)?);
        }
        let bases = all.iter().skip(1).map(|books| books.base).collect();
        Some(Self { all, bases })
    }

    /// The number of the section that has the slot `id` of the pool.
    #[inline]
    pub(super) fn number_of(&self, id: SlotId) -> usize {
        self.bases.partition_point(|&base| base <= id)
    }

    #[inline]
    pub(super) fn of(&mut self, id: SlotId) -> &mut Books {
        let number = self.number_of(id);
        &mut self.all[number]
    }

    /// The section of the last of `ids`, the ones at the end that are its slots, and those before.
    #[inline]
    pub(super) fn last_run<'a>(
        &mut self,
        ids: &'a [SlotId],
    ) -> Option<(&mut Books, &'a [SlotId], &'a [SlotId])> {
        let number = self.number_of(*ids.last()?);
        let books = &mut self.all[number];
        let run = if self.bases.is_empty() {
            ids.len()
        } else {
            let slots = books.slots();
            ids.iter().rev().take_while(|id| slots.contains(id)).count()
        };
        let (before, run) = ids.split_at(ids.len() - run);
        Some((books, run, before))
    }

    /// What all sections together have of something.
    pub(super) fn sum(&self, of: impl Fn(&Books) -> usize) -> usize {
        self.all.iter().map(of).sum()
    }
}
