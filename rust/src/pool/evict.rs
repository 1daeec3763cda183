//! Who goes when room is needed.
//!
//! The policy of the section that needs it proposes, the pool keeps chains whole: while an inactive
//! block continues the victim, the victim waits among the condemned and that block goes first, also
//! when its slot is another section's. A victim that has a duplicate in use leaves its place in the
//! chain to it, so nothing has to go before.

use super::{
    chain,
    slot::{Life, NONE, Tracking},
    state::State,
};
use crate::eviction::SlotId;

/// A search for room in one section, which ends with the lock under which it began.
#[derive(Default)]
pub(super) struct Hunt {
    /// Number of the section.
    section: usize,
    /// Blocks of other sections that wait for what continues them: the first continues the last of
    /// the condemned, each the one before it. They stay with their policies until they go.
    outside: Vec<SlotId>,
}

impl State {
    /// Evicts blocks until one of `section` goes; returns its slot, now belonging to nobody. Slots
    /// of other sections that had to go before are free. `None` when the section has no inactive
    /// block.
    pub(super) fn evict_in(&mut self, section: usize) -> Option<SlotId> {
        let mut hunt = Hunt { section, ..Hunt::default() };
        loop {
            let id = self.evict_next(&mut hunt)?;
            if self.sections.number_of(id) == section {
                return Some(id);
            }
            self.free(id);
        }
    }

    /// Evicts one block, the first section's first, and returns its slot, now belonging to nobody;
    /// `None` when there is no inactive block.
    #[inline]
    pub(super) fn evict_any(&mut self, hunt: &mut Hunt) -> Option<SlotId> {
        while hunt.section < self.sections.all.len() {
            let evicted = self.evict_next(hunt);
            if evicted.is_some() {
                return evicted;
            }
            hunt.section += 1;
        }
        None
    }

    /// In each section, evicts until as many slots are free as `target` says for its capacity or
    /// nothing is inactive; returns how many blocks went.
    pub(super) fn evict_until_free(&mut self, target: impl Fn(usize) -> usize) -> usize {
        let before = self.totals.evictions;
        for section in 0..self.sections.all.len() {
            let target = target(self.sections.all[section].capacity());
            let mut hunt = Hunt { section, ..Hunt::default() };
            while self.sections.all[section].free_slots() < target {
                let Some(id) = self.evict_next(&mut hunt) else { break };
                self.free(id);
            }
        }
        (self.totals.evictions - before) as usize
    }

    /// Evicts the block that has to go next for there to be room in the section of `hunt`; returns
    /// its slot, whosesoever it is, now belonging to nobody.
    #[inline]
    fn evict_next(&mut self, hunt: &mut Hunt) -> Option<SlotId> {
        let own = hunt.section;
        let (mut id, mut section) = match hunt.outside.pop() {
            Some(id) => (id, self.sections.number_of(id)),
            None => (self.given_up(own)?, own),
        };
        while let Some(child) = self.continued_by(id) {
            if section == own {
                self.sections.all[own].condemned.push(id);
            } else {
                hunt.outside.push(id);
            }
            (id, section) = (child, self.sections.number_of(child));
            if section == own {
                // What lies between it and the condemned is found again once it is gone.
                hunt.outside.clear();
                self.lose(id);
            }
        }
        if section != own {
            self.lose(id);
        }
        self.sections.all[section].inactive -= 1;
        self.totals.evictions += 1;
        self.unregister(id);
        self.slot(id).end();
        Some(id)
    }

    /// The inactive block that has to go before `id`, if there is one.
    fn continued_by(&self, id: SlotId) -> Option<SlotId> {
        let succeeded = self.slots[id as usize].duplicates != NONE;
        if succeeded { None } else { chain::inactive_child(&self.slots, id) }
    }

    /// A block of `section` that its policy has given up: one that had to wait, or a new victim.
    fn given_up(&mut self, section: usize) -> Option<SlotId> {
        while let Some(id) = self.sections.all[section].condemned.pop() {
            let slot = &self.slots[id as usize];
            if slot.life == Life::Inactive && !slot.is_tracked() {
                return Some(id);
            }
        }
        let victim = self.victim(section)?;
        self.slot(victim).tracking = Tracking::Untracked;
        Some(victim)
    }

    /// The policy of `id` loses it, unless it gave it up itself.
    fn lose(&mut self, id: SlotId) {
        if self.slots[id as usize].is_tracked() {
            self.sections.of(id).evicted(id);
            self.slot(id).tracking = Tracking::Untracked;
        }
    }

    /// The policy's choice. Policies may come from outside: one that names a slot which cannot go,
    /// or none though there are some, is overruled. That costs a search, never a block in use.
    fn victim(&mut self, section: usize) -> Option<SlotId> {
        let chosen = self.sections.all[section].evict();
        chosen.filter(|&id| self.is_evictable(id)).or_else(|| self.any_victim(section))
    }

    #[cold]
    fn any_victim(&mut self, section: usize) -> Option<SlotId> {
        let books = &self.sections.all[section];
        if books.inactive == 0 {
            return None;
        }
        let id = books.used().find(|&id| self.is_evictable(id))?;
        self.sections.all[section].remove(id);
        Some(id)
    }

    fn is_evictable(&self, id: SlotId) -> bool {
        let evictable = |life, tracked| life == Life::Inactive && tracked;
        self.slots.get(id as usize).is_some_and(|slot| evictable(slot.life, slot.is_tracked()))
    }
}
