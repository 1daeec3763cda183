//! Who goes when room is needed.
//!
//! The policy proposes, the pool keeps chains whole: while an inactive block continues the victim,
//! the victim waits on the stack of the condemned and that block goes first. A victim that has a
//! duplicate in use leaves its place in the chain to it, so nothing has to go before.

use super::{
    chain,
    slot::{Life, NONE, Tracking},
    state::State,
};
use crate::eviction::SlotId;

impl State {
    /// Evicts one inactive block and returns its slot, now belonging to nobody; `None` when there
    /// is no inactive block.
    pub(super) fn evict_one(&mut self) -> Option<SlotId> {
        loop {
            while let Some(&id) = self.condemned.last() {
                let slot = &self.slots[id as usize];
                if slot.life != Life::Inactive || slot.is_tracked() {
                    self.condemned.pop();
                } else if slot.duplicates == NONE
                    && let Some(child) = chain::inactive_child(&self.slots, id)
                {
                    self.condemn(child);
                } else {
                    self.condemned.pop();
                    self.inactive -= 1;
                    self.totals.evictions += 1;
                    self.unregister(id);
                    self.slot(id).end();
                    return Some(id);
                }
            }
            let victim = self.victim()?;
            self.slot(victim).tracking = Tracking::Untracked;
            self.condemned.push(victim);
        }
    }

    fn condemn(&mut self, id: SlotId) {
        if self.slots[id as usize].is_tracked() {
            self.policy.evicted(id);
            self.slot(id).tracking = Tracking::Untracked;
        }
        self.condemned.push(id);
    }

    /// The policy's choice. Policies may come from outside: one that names a slot which cannot go,
    /// or none though there are some, is overruled. That costs a search, never a block in use.
    fn victim(&mut self) -> Option<SlotId> {
        let chosen = self.policy.evict();
        chosen.filter(|&id| self.is_evictable(id)).or_else(|| self.any_victim())
    }

    #[cold]
    fn any_victim(&mut self) -> Option<SlotId> {
        if self.inactive == 0 {
            return None;
        }
        let id = (0..self.slots.len() as SlotId).find(|&id| self.is_evictable(id))?;
        self.policy.remove(id);
        Some(id)
    }

    fn is_evictable(&self, id: SlotId) -> bool {
        let evictable = |life, tracked| life == Life::Inactive && tracked;
        self.slots.get(id as usize).is_some_and(|slot| evictable(slot.life, slot.is_tracked()))
    }

    /// Evicts until `target` slots are free or nothing is inactive; returns how many went.
    pub(super) fn evict_until_free(&mut self, target: usize) -> usize {
        let mut evicted = 0;
        while self.free_slots() < target {
            let Some(id) = self.evict_one() else { break };
            self.free(id);
            evicted += 1;
        }
        evicted
    }
}
