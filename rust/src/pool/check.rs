//! The self-check: everything recounted from the slots, every slot in exactly one place, every link
//! both ways.

use std::collections::HashSet;

use super::{
    PoolError, ring,
    section::Books,
    slot::{Life, NONE, Slot, Standing},
    state::State,
};
use crate::eviction::SlotId;

type Checked = Result<(), String>;

impl State {
    pub(super) fn self_check(&self) -> Result<(), PoolError> {
        let checked = self.check_counts().and_then(|()| {
            (0..).zip(&self.slots).try_for_each(|(id, slot)| {
                self.check_slot(id, slot)?;
                self.check_links(id, slot)
            })
        });
        checked.map_err(|reason| PoolError::SelfCheck { tier: self.tier, reason })
    }

    fn check_counts(&self) -> Checked {
        for (number, books) in self.sections.all.iter().enumerate() {
            self.check_section(books).map_err(|reason| format!("section {number}: {reason}"))?;
        }
        let registered = self.slots.iter().filter(|slot| slot.is_registered()).count();
        ensure(registered == self.index.len(), || {
            format!("{registered} registered slots, {} in the index", self.index.len())
        })
    }

    fn check_section(&self, books: &Books) -> Checked {
        let used = books.used().start as usize..books.used().end as usize;
        let slots = self.slots.get(used).unwrap_or_default();
        ensure(slots.len() == books.used().len() && books.used().end <= books.slots().end, || {
            format!("slots {:?} of {:?} are used", books.used(), books.slots())
        })?;
        let fresh = self.slots.iter().take(books.slots().end as usize);
        let mut fresh = fresh.skip(books.used().end as usize);
        ensure(fresh.all(|slot| slot.life == Life::Free && slot.epoch == 0), || {
            "a slot that has never been used is in use".to_owned()
        })?;
        let mut counts = [0_usize; 5];
        for slot in slots {
            counts[slot.life as usize] += 1;
        }
        let Books { free, mutable, active, inactive, quarantined, .. } = books;
        let booked = [free.len(), *mutable, *active, *inactive, *quarantined];
        ensure(counts == booked, || {
            format!("free, mutable, active, inactive, quarantined: {counts:?}, booked {booked:?}")
        })?;
        let listed: HashSet<SlotId> = free.iter().copied().collect();
        let is_free =
            |&id: &SlotId| books.used().contains(&id) && self.slots[id as usize].life == Life::Free;
        ensure(listed.len() == free.len() && listed.iter().all(is_free), || {
            "the free list names a slot twice, or one in use or of another section".to_owned()
        })?;
        let evictable = |slot: &&Slot| slot.life == Life::Inactive && slot.is_tracked();
        let evictable = slots.iter().filter(evictable).count();
        ensure(evictable == books.evictable(), || {
            format!("{evictable} evictable blocks, the policy has {}", books.evictable())
        })?;
        let condemned: HashSet<SlotId> = books.condemned.iter().copied().collect();
        ensure(condemned.iter().all(|id| books.used().contains(id)), || {
            "a block of another section is condemned".to_owned()
        })?;
        let waits = |(id, slot): (SlotId, &Slot)| {
            slot.life != Life::Inactive || slot.is_tracked() || condemned.contains(&id)
        };
        ensure(books.used().zip(slots).all(waits), || {
            "an inactive block is neither the policy's nor condemned".to_owned()
        })
    }

    fn check_slot(&self, id: SlotId, slot: &Slot) -> Checked {
        let (life, standing) = (slot.life, slot.standing);
        ensure((life == Life::Active) == (slot.refs > 0), || {
            format!("slot {id} is {life:?} with {} readers", slot.refs)
        })?;
        let possible = match life {
            Life::Active => true,
            Life::Inactive => standing == Standing::Registered,
            Life::Free | Life::Mutable | Life::Quarantined => standing == Standing::Unlisted,
        };
        ensure(possible, || format!("slot {id} is {life:?} and {standing:?}"))?;
        ensure(!slot.is_tracked() || slot.is_registered(), || {
            format!("slot {id} is {standing:?}, the policy tracks it")
        })?;
        if slot.is_registered() {
            let found = self.find(self.digest(id), slot.key());
            ensure(found == Some(id), || {
                format!("slot {id} is registered, a lookup finds {found:?}")
            })?;
        }
        Ok(())
    }

    fn check_links(&self, id: SlotId, slot: &Slot) -> Checked {
        let rooted = slot.parent == NONE && slot.first_child == NONE && slot.duplicates == NONE;
        ensure(slot.is_registered() || rooted, || {
            format!("slot {id} is {:?} and has a place in a chain", slot.standing)
        })?;
        let head = match slot.parent {
            _ if !slot.is_registered() => {
                let primary = self.find(self.digest(id), slot.key());
                primary.map_or(NONE, |primary| self.slots[primary as usize].duplicates)
            }
            NONE => NONE,
            parent => self.slots[parent as usize].first_child,
        };
        let linked = slot.next != NONE;
        ensure(linked == (head != NONE && self.is_member(head, id)), || {
            format!("slot {id} and the ring of {head} disagree on whether it belongs there")
        })?;
        ensure(!slot.is_registered() || linked == (slot.parent != NONE), || {
            format!("slot {id} has siblings and no parent, or the reverse")
        })?;
        let is_child = |child: SlotId| self.slots[child as usize].parent == id;
        ensure(ring::members(&self.slots, slot.first_child).all(is_child), || {
            format!("a child of slot {id} has another parent")
        })?;
        let is_duplicate = |other: SlotId| {
            let copy = &self.slots[other as usize];
            copy.life == Life::Active
                && copy.standing == Standing::Unlisted
                && copy.key() == slot.key()
                && self.engine_key(other) == self.engine_key(id)
        };
        ensure(ring::members(&self.slots, slot.duplicates).all(is_duplicate), || {
            format!("a duplicate of slot {id} is not one")
        })
    }

    fn is_member(&self, head: SlotId, id: SlotId) -> bool {
        ring::members(&self.slots, head).any(|member| member == id)
    }
}

fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(reason()) }
}
