//! Finding blocks, and holding what was found in the same step.

use super::{
    slot::{Life, Standing, Tracking},
    state::{Ids, State},
};
use crate::{
    events::EventKind,
    eviction::SlotId,
    index::prefetch,
    tokens::{EngineKey, Key},
};

impl State {
    #[inline]
    pub(super) fn find(&self, hash: u64, key: Key) -> Option<SlotId> {
        self.index.find(hash, |id| self.slots[id as usize].key() == key)
    }

    /// The slots of `keys`, in order, found as the result is iterated; probes run ahead so that the
    /// memory of large pools arrives in time.
    fn find_all(&self, keys: &[Key]) -> impl Iterator<Item = Option<SlotId>> {
        self.index.find_all(
            keys.iter().map(|&key| self.mix(key)),
            |id| prefetch(&self.slots, id as usize),
            |position, id| self.slots[id as usize].key() == keys[position],
        )
    }

    /// Pins the longest prefix of `keys` that is registered, `engine_keys` being those of its
    /// blocks.
    pub(super) fn match_prefix(
        &mut self,
        keys: &[Key],
        engine_keys: Option<&[EngineKey]>,
        out: &mut Ids,
    ) {
        for (position, found) in self.find_all(keys).enumerate() {
            let Some(id) = found else { break };
            let wanted = engine_keys.map(|wanted| wanted.get(position).copied());
            if wanted.is_some_and(|wanted| wanted != self.engine_key(id)) {
                break;
            }
            if position == 0 {
                out.reserve(keys.len());
            }
            out.push(id);
        }
        self.pin(out);
        self.totals.hits += out.len() as u64;
        self.totals.misses += (keys.len() - out.len()) as u64;
        self.record(EventKind::Matched, out);
    }

    /// Adds a reader to blocks that were asked for.
    fn pin(&mut self, ids: &[SlotId]) {
        for &id in ids {
            let slot = &mut self.slots[id as usize];
            slot.refs = slot.refs.saturating_add(1);
            let was_idle = slot.life == Life::Inactive;
            slot.life = Life::Active;
            let section = self.sections.of(id);
            if was_idle {
                section.inactive -= 1;
                section.active += 1;
            }
            if slot.tracking != Tracking::Tracked {
                slot.tracking = Tracking::Asked;
            } else if was_idle {
                section.pin(id);
            } else {
                section.touch(id);
            }
        }
    }

    /// Adds a reader to slots that a live handle holds already.
    pub(super) fn pin_held(&mut self, ids: &[SlotId]) {
        for &id in ids {
            let slot = self.slot(id);
            slot.refs = slot.refs.saturating_add(1);
        }
    }

    /// Adds a reader to `id` if it still holds the block it held at `epoch`. Nobody asked for the
    /// block, so the policy learns only that it is in use.
    pub(super) fn upgrade(&mut self, id: SlotId, epoch: u64) -> bool {
        let slot = &mut self.slots[id as usize];
        let readable = matches!(slot.life, Life::Active | Life::Inactive);
        if slot.epoch != epoch || !readable || slot.standing == Standing::Suspect {
            return false;
        }
        slot.refs = slot.refs.saturating_add(1);
        if slot.life == Life::Inactive {
            slot.life = Life::Active;
            let section = self.sections.of(id);
            section.inactive -= 1;
            section.active += 1;
            if slot.is_tracked() {
                section.hold(id);
            }
        }
        true
    }

    pub(super) fn epoch(&self, id: SlotId) -> u64 {
        self.slots[id as usize].epoch
    }

    /// Whether lookups of its key may give this block or one equal to it: not after a reset, not
    /// after its bytes failed verification.
    pub(super) fn is_current(&self, id: SlotId) -> bool {
        let standing = self.slots[id as usize].standing;
        matches!(standing, Standing::Registered | Standing::Unlisted)
    }

    /// Whether lookups of its key give another slot.
    pub(super) fn is_duplicate(&self, id: SlotId) -> bool {
        self.slots[id as usize].standing == Standing::Unlisted
    }

    /// Which of `keys` are registered; counts as no access.
    pub(super) fn contains(&self, keys: &[Key]) -> Vec<bool> {
        self.find_all(keys).map(|found| found.is_some()).collect()
    }

    /// Position of the first of `keys` that is registered; counts as no access.
    pub(super) fn first_present(&self, keys: &[Key]) -> Option<usize> {
        self.find_all(keys).position(|found| found.is_some())
    }

    /// Tells the policy that the blocks of `keys` were asked for, the last first; returns how many
    /// there are.
    pub(super) fn touch(&mut self, keys: &[Key]) -> usize {
        let mut touched = 0;
        for &key in keys.iter().rev() {
            let hash = self.mix(key);
            let Some(id) = self.find(hash, key) else { continue };
            touched += 1;
            let slot = &mut self.slots[id as usize];
            match (slot.tracking, slot.life) {
                (Tracking::Tracked, _) => self.sections.of(id).touch(id),
                // Asked for while condemned: it has earned its place back.
                (_, Life::Inactive) => {
                    slot.tracking = Tracking::Tracked;
                    self.sections.of(id).insert(id, hash);
                }
                _ => slot.tracking = Tracking::Asked,
            }
        }
        touched
    }
}
