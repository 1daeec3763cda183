//! How blocks end: the last reader goes, the bytes prove bad, the pool forgets.

use super::{
    ring,
    slot::{Life, NONE, Standing, Tracking},
    state::{Ids, State, mix},
};
use crate::eviction::SlotId;

impl State {
    /// Gives up one reader of each slot, the last first.
    ///
    /// A count of readers that has reached the largest number has lost count: it stays there, and
    /// so does the slot, which nobody else can then get while somebody may be reading it.
    pub(super) fn release(&mut self, ids: &[SlotId]) {
        let mut unlisted = Ids::new();
        let mut rest = ids;
        while let Some((section, run, before)) = self.sections.last_run(rest) {
            rest = before;
            for &id in run.iter().rev() {
                let slot = &mut self.slots[id as usize];
                if slot.refs != 1 {
                    slot.refs -= u32::from(slot.refs != u32::MAX);
                    continue;
                }
                slot.refs = 0;
                section.active -= 1;
                if !slot.is_registered() {
                    unlisted.push(id);
                    continue;
                }
                slot.life = Life::Inactive;
                section.inactive += 1;
                match std::mem::replace(&mut slot.tracking, Tracking::Tracked) {
                    Tracking::Tracked => section.unpin(id),
                    before => {
                        section.insert(id, mix(&self.mixer, slot.key()));
                        if before == Tracking::Asked {
                            section.touch(id);
                        }
                    }
                }
            }
        }
        for id in unlisted {
            self.release_unlisted(id);
        }
    }

    /// The last reader of a duplicate, of a block from before a reset, or of a suspect is gone.
    #[cold]
    fn release_unlisted(&mut self, id: SlotId) {
        if self.slots[id as usize].standing == Standing::Suspect {
            self.slot(id).end();
            self.slot(id).life = Life::Quarantined;
            self.sections.of(id).quarantined += 1;
        } else {
            self.remove_duplicate(id);
            self.slot(id).end();
            self.free(id);
        }
    }

    /// The bytes of these held slots are not what their keys say: no lookup finds them from now on,
    /// no weak handle gets them back, and when their last readers go the slots stay out of use.
    pub(super) fn quarantine(&mut self, ids: &[SlotId]) {
        for &id in ids {
            if self.slots[id as usize].is_registered() {
                if self.slots[id as usize].is_tracked() {
                    self.sections.of(id).remove(id);
                }
                self.unregister(id);
            } else {
                self.remove_duplicate(id);
            }
            let slot = self.slot(id);
            slot.standing = Standing::Suspect;
            slot.tracking = Tracking::Untracked;
        }
    }

    /// Takes all quarantined slots as mutable ones, for whoever wants to test their memory.
    pub(super) fn take_quarantined(&mut self, out: &mut Ids) {
        for section in &mut self.sections.all {
            if section.quarantined == 0 {
                continue;
            }
            for id in section.used() {
                let slot = &mut self.slots[id as usize];
                if slot.life == Life::Quarantined {
                    slot.life = Life::Mutable;
                    out.push(id);
                }
            }
            section.mutable += std::mem::take(&mut section.quarantined);
        }
    }

    /// Takes one quarantined slot as a mutable one; `false` when it is not quarantined.
    pub(super) fn take_quarantined_slot(&mut self, id: SlotId) -> bool {
        let taken = self.slots.get(id as usize).is_some_and(|s| s.life == Life::Quarantined);
        if taken {
            self.slot(id).life = Life::Mutable;
            let section = self.sections.of(id);
            section.quarantined -= 1;
            section.mutable += 1;
        }
        taken
    }

    /// Puts mutable slots out of use.
    pub(super) fn quarantine_mutable(&mut self, ids: &[SlotId]) {
        for &id in ids {
            self.slot(id).life = Life::Quarantined;
            let section = self.sections.of(id);
            section.mutable -= 1;
            section.quarantined += 1;
        }
    }

    /// Forgets every block; returns how many slots are still held by handles.
    pub(super) fn reset(&mut self) -> usize {
        for id in 0..self.slots.len() as SlotId {
            let slot = &mut self.slots[id as usize];
            (slot.parent, slot.first_child, slot.duplicates) = (NONE, NONE, NONE);
            ring::leave(slot);
            if std::mem::replace(&mut slot.tracking, Tracking::Untracked) == Tracking::Tracked {
                self.sections.of(id).remove(id);
            }
            let slot = &mut self.slots[id as usize];
            match slot.life {
                Life::Inactive => {
                    slot.end();
                    self.free(id);
                }
                Life::Active if slot.standing != Standing::Suspect => {
                    slot.epoch += 1;
                    slot.standing = Standing::Forgotten;
                }
                Life::Active | Life::Free | Life::Mutable | Life::Quarantined => {}
            }
        }
        for section in &mut self.sections.all {
            section.inactive = 0;
            section.condemned.clear();
        }
        self.index.clear();
        self.generation += 1;
        self.totals.resets += 1;
        if let Some(events) = &self.events {
            events.record_cleared(self.tier);
        }
        self.sections.sum(|section| section.active + section.mutable)
    }
}
