//! Which slot stands for which key.
//!
//! At most one slot is registered under a key. Others that hold the same block are its duplicates,
//! a ring in order of age from which the oldest takes over when the registered one goes.

use super::{
    Registration, chain, ring,
    slot::{Life, NONE, Standing, pack},
    state::{Ids, State},
};
use crate::{events::EventKind, eviction::SlotId, tokens::Key};

/// How many registrations ahead the index is asked for its memory.
const AHEAD: usize = 16;

impl State {
    /// Names `ids` and makes each active with one reader.
    pub(super) fn register(&mut self, ids: &[SlotId], registrations: &[Registration]) {
        let mut rest = ids;
        while let Some((section, run, before)) = self.sections.last_run(rest) {
            section.mutable -= run.len();
            section.active += run.len();
            rest = before;
        }
        let mut first_copies = Ids::new();
        let mut previous: Option<(Key, SlotId)> = None;
        for registration in registrations.iter().take(AHEAD) {
            self.index.prefetch(self.mix(registration.key));
        }
        for (position, (&id, registration)) in ids.iter().zip(registrations).enumerate() {
            if let Some(ahead) = registrations.get(position + AHEAD) {
                self.index.prefetch(self.mix(ahead.key));
            }
            let key = registration.key;
            self.name(id, registration);
            let hash = self.mix(key);
            if let Some(primary) = self.find(hash, key) {
                self.totals.duplicates += 1;
                self.add_duplicate(primary, id);
                previous = Some((key, primary));
                continue;
            }
            let inserted = self.index.insert(hash, id);
            debug_assert!(inserted, "the index has room for every slot");
            self.slot(id).standing = Standing::Registered;
            if let Some(parent) = self.parent_slot(registration, previous) {
                chain::link(&mut self.slots, parent, id);
            }
            previous = Some((key, id));
            first_copies.push(id);
        }
        self.totals.registrations += first_copies.len() as u64;
        self.record(EventKind::Registered, &first_copies);
    }

    fn name(&mut self, id: SlotId, registration: &Registration) {
        let slot = &mut self.slots[id as usize];
        slot.life = Life::Active;
        slot.refs = 1;
        slot.set_key(registration.key);
        slot.has_parent = registration.parent.is_some();
        if let Some(parent) = registration.parent {
            self.parents[id as usize] = pack(parent);
        }
        if let Some(place) = self.engine_keys.get_mut(id as usize) {
            *place = registration.engine_key;
        } else if registration.engine_key.is_some() {
            self.engine_keys.resize(id as usize, None);
            self.engine_keys.push(registration.engine_key);
        }
    }

    /// The slot of the block that a new one continues; most often the one registered before it. A
    /// block that claims to continue itself continues none.
    fn parent_slot(
        &self,
        registration: &Registration,
        previous: Option<(Key, SlotId)>,
    ) -> Option<SlotId> {
        let parent = Key { hash: registration.parent?, group: registration.key.group };
        match previous {
            _ if parent == registration.key => None,
            Some((key, slot)) if key == parent => Some(slot),
            _ => self.find(self.mix(parent), parent),
        }
    }

    /// Takes a registered slot out of the index; its oldest duplicate takes over.
    pub(super) fn unregister(&mut self, id: SlotId) {
        let slot = self.slot(id);
        slot.standing = Standing::Unlisted;
        let successor = std::mem::replace(&mut slot.duplicates, NONE);
        let hash = self.digest(id);
        if successor == NONE {
            self.index.remove(hash, id);
            chain::unlink(&mut self.slots, id);
            self.record(EventKind::Evicted, &[id]);
        } else {
            let replaced = self.index.replace(hash, id, successor);
            debug_assert!(replaced, "slot {id} was registered");
            let others = ring::remove(&mut self.slots, successor, successor);
            self.slot(successor).duplicates = others;
            self.slot(successor).standing = Standing::Registered;
            chain::replace(&mut self.slots, id, successor);
        }
    }

    /// A second copy of what `primary` holds. Under another engine key the two are different blocks
    /// whose hashes collide: the newcomer then stays unknown to lookups and never takes over.
    fn add_duplicate(&mut self, primary: SlotId, id: SlotId) {
        if self.engine_key(primary) == self.engine_key(id) {
            let oldest = self.slots[primary as usize].duplicates;
            self.slot(primary).duplicates = ring::push(&mut self.slots, oldest, id);
        }
    }

    /// Takes an unlisted slot out of the ring of its key's duplicates, if it is in one.
    pub(super) fn remove_duplicate(&mut self, id: SlotId) {
        let slot = &self.slots[id as usize];
        if slot.next == NONE {
            return;
        }
        let key = slot.key();
        if let Some(primary) = self.find(self.mix(key), key) {
            let oldest = self.slots[primary as usize].duplicates;
            self.slot(primary).duplicates = ring::remove(&mut self.slots, oldest, id);
        }
    }
}
