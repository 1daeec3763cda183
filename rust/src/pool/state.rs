//! The pool's bookkeeping, under its lock. No lock, handle or byte in here: plain data and rules.

use super::{
    PoolError, Registration, chain,
    slot::{Life, NONE, Slot, pack, unpack},
};
use crate::{
    config::Tier,
    events::{EventBlock, EventKind, EventStream},
    eviction::{EvictionPolicy, SlotId},
    index::{BlockIndex, Mixer, prefetch},
    metrics::PoolMetrics,
    sync::Arc,
    tokens::{EngineKey, Key, SequenceHash},
};

/// Slot numbers of one operation; a single block needs no allocation.
pub(super) type Ids = smallvec::SmallVec<[SlotId; 4]>;

pub(super) struct State {
    tier: Tier,
    slots: Vec<Slot>,
    /// Hash of each slot's parent, where `has_parent`.
    parents: Vec<[u64; 2]>,
    /// Made at the first engine key; `has_engine_key` says which entries count.
    engine_keys: Vec<EngineKey>,
    /// Free slots; the most recently used on top, whose memory is warm.
    free: Vec<SlotId>,
    index: BlockIndex,
    mixer: Mixer,
    policy: Box<dyn EvictionPolicy>,
    /// Victims the policy has given up, each continued by the one above it: the top goes first.
    /// An entry whose slot has been used since is skipped.
    condemned: Vec<SlotId>,
    mutable: usize,
    active: usize,
    inactive: usize,
    quarantined: usize,
    pub(super) generation: u64,
    /// What only grows; the gauges in it are filled in by `metrics`.
    pub(super) totals: PoolMetrics,
    events: Option<Arc<EventStream>>,
}

impl State {
    pub(super) fn new(
        tier: Tier,
        capacity: usize,
        policy: Box<dyn EvictionPolicy>,
        events: Option<Arc<EventStream>>,
    ) -> Self {
        Self {
            tier,
            slots: vec![Slot::free(); capacity],
            parents: vec![[0; 2]; capacity],
            engine_keys: Vec::new(),
            free: (0..capacity as SlotId).rev().collect(),
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
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn available(&self) -> usize {
        self.free.len() + self.inactive
    }

    pub(super) fn metrics(&self) -> PoolMetrics {
        PoolMetrics {
            capacity: self.capacity() as u64,
            free: self.free.len() as u64,
            mutable: self.mutable as u64,
            active: self.active as u64,
            inactive: self.inactive as u64,
            quarantined: self.quarantined as u64,
            ..self.totals.clone()
        }
    }

    pub(super) fn policy_name(&self) -> &'static str {
        self.policy.name()
    }

    // ---- allocation and eviction -------------------------------------------------------------

    /// Takes `count` slots, free ones first, then victims; the caller knows that many exist.
    pub(super) fn allocate(&mut self, count: usize, out: &mut Ids) {
        out.reserve(count);
        for _ in 0..count {
            let Some(id) = self.free.pop().or_else(|| self.evict_one()) else { break };
            self.slots[id as usize].life = Life::Mutable;
            out.push(id);
        }
        self.mutable += out.len();
        self.totals.allocations += out.len() as u64;
        debug_assert_eq!(out.len(), count);
        if self.events.is_some() {
            for &id in out.iter() {
                self.record(EventKind::Allocated, id);
            }
        }
    }

    /// Evicts one inactive block and returns its slot, now belonging to nobody.
    fn evict_one(&mut self) -> Option<SlotId> {
        loop {
            while let Some(&id) = self.condemned.last() {
                let slot = &self.slots[id as usize];
                if slot.life != Life::Inactive || slot.tracked {
                    self.condemned.pop();
                } else if let Some(child) = chain::inactive_child(&self.slots, id) {
                    self.condemn(child);
                } else {
                    self.condemned.pop();
                    self.inactive -= 1;
                    self.totals.evictions += 1;
                    self.unregister(id);
                    self.end(id);
                    return Some(id);
                }
            }
            let victim = self.policy.evict()?;
            self.slots[victim as usize].tracked = false;
            self.condemned.push(victim);
        }
    }

    fn condemn(&mut self, id: SlotId) {
        if self.slots[id as usize].tracked {
            self.policy.evicted(id);
            self.slots[id as usize].tracked = false;
        }
        self.condemned.push(id);
    }

    /// Evicts until `target` slots are free or nothing is inactive; returns how many went.
    pub(super) fn evict_until_free(&mut self, target: usize) -> usize {
        let mut evicted = 0;
        while self.free.len() < target {
            let Some(id) = self.evict_one() else { break };
            self.free(id);
            evicted += 1;
        }
        evicted
    }

    /// Returns slots that were allocated and not registered.
    pub(super) fn free_mutable(&mut self, ids: &[SlotId]) {
        self.mutable -= ids.len();
        for &id in ids.iter().rev() {
            self.free(id);
        }
    }

    fn free(&mut self, id: SlotId) {
        self.slots[id as usize].life = Life::Free;
        self.free.push(id);
    }

    /// The content of `id` is no more: weak handles to it are dead.
    fn end(&mut self, id: SlotId) {
        let slot = &mut self.slots[id as usize];
        slot.epoch = slot.epoch.wrapping_add(1);
        slot.has_parent = false;
        slot.has_engine_key = false;
        slot.suspect = false;
        slot.forgotten = false;
    }

    // ---- registration ------------------------------------------------------------------------

    /// Names `ids` and makes each active with one reader.
    pub(super) fn register(&mut self, ids: &[SlotId], registrations: &[Registration]) {
        self.mutable -= ids.len();
        self.active += ids.len();
        self.totals.registrations += ids.len() as u64;
        let mut previous: Option<(Key, SlotId)> = None;
        for (&id, registration) in ids.iter().zip(registrations) {
            self.name(id, registration);
            let hash = self.mix(registration.key);
            if let Some(primary) = self.find(hash, registration.key) {
                self.totals.duplicates += 1;
                // Under another engine key the two are different blocks whose hashes collide: the
                // newcomer stays unknown to lookups.
                if self.engine_key(primary) == self.engine_key(id) {
                    self.append_duplicate(primary, id);
                }
                previous = Some((registration.key, primary));
                continue;
            }
            let inserted = self.index.insert(hash, id);
            debug_assert!(inserted, "the index has room for every slot");
            self.slots[id as usize].registered = true;
            if let Some(parent) = registration.parent {
                let parent = Key { hash: parent, group: registration.key.group };
                let found = match previous {
                    Some((key, slot)) if key == parent => Some(slot),
                    _ => self.find(self.mix(parent), parent),
                };
                if let Some(found) = found.filter(|&found| found != id) {
                    chain::link(&mut self.slots, found, id);
                }
            }
            previous = Some((registration.key, id));
            self.record(EventKind::Registered, id);
        }
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
        slot.has_engine_key = registration.engine_key.is_some();
        if let Some(engine_key) = registration.engine_key {
            if self.engine_keys.is_empty() {
                self.engine_keys = vec![engine_key; self.slots.len()];
            }
            self.engine_keys[id as usize] = engine_key;
        }
    }

    fn append_duplicate(&mut self, primary: SlotId, id: SlotId) {
        let mut last = primary;
        while self.slots[last as usize].next_duplicate != NONE {
            last = self.slots[last as usize].next_duplicate;
        }
        self.slots[last as usize].next_duplicate = id;
    }

    fn remove_duplicate(&mut self, id: SlotId) {
        let key = self.slots[id as usize].key();
        let Some(mut before) = self.find(self.mix(key), key) else { return };
        while before != NONE {
            let next = self.slots[before as usize].next_duplicate;
            if next == id {
                self.slots[before as usize].next_duplicate = self.slots[id as usize].next_duplicate;
                break;
            }
            before = next;
        }
        self.slots[id as usize].next_duplicate = NONE;
    }

    /// Takes a registered slot out of the index; its oldest live duplicate takes over.
    fn unregister(&mut self, id: SlotId) {
        let slot = &mut self.slots[id as usize];
        slot.registered = false;
        let successor = std::mem::replace(&mut slot.next_duplicate, NONE);
        let hash = self.mix(self.slots[id as usize].key());
        if successor == NONE {
            self.index.remove(hash, id);
            chain::unlink(&mut self.slots, id);
            self.record(EventKind::Evicted, id);
        } else {
            let replaced = self.index.replace(hash, id, successor);
            debug_assert!(replaced, "slot {id} was registered");
            self.slots[successor as usize].registered = true;
            chain::replace(&mut self.slots, id, successor);
        }
    }

    // ---- lookup ------------------------------------------------------------------------------

    fn mix(&self, key: Key) -> u64 {
        self.mixer.mix(key.hash.as_u128(), key.group)
    }

    fn find(&self, hash: u64, key: Key) -> Option<SlotId> {
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

    /// Pins the longest prefix of `keys` that is registered.
    pub(super) fn match_prefix(
        &mut self,
        keys: &[Key],
        engine_keys: Option<&[EngineKey]>,
        out: &mut Ids,
    ) {
        let same_engine_key = |(position, id): &(usize, SlotId)| {
            engine_keys.is_none_or(|keys| self.engine_key(*id) == keys.get(*position).copied())
        };
        let found = self.find_all(keys).map_while(|found| found).enumerate();
        out.extend(found.take_while(same_engine_key).map(|(_, id)| id));
        for &id in out.iter() {
            self.pin(id);
        }
        self.totals.hits += out.len() as u64;
        self.totals.misses += (keys.len() - out.len()) as u64;
        if self.events.is_some() {
            for &id in out.iter() {
                self.record(EventKind::Matched, id);
            }
        }
    }

    /// Pins a slot that holds a block.
    fn pin(&mut self, id: SlotId) {
        let slot = &mut self.slots[id as usize];
        slot.refs += 1;
        if slot.life == Life::Inactive {
            slot.life = Life::Active;
            self.inactive -= 1;
            self.active += 1;
        }
        if slot.tracked {
            self.policy.pin(id);
        }
    }

    /// Pins slots that a live handle holds already.
    pub(super) fn pin_held(&mut self, ids: &[SlotId]) {
        for &id in ids {
            self.slots[id as usize].refs += 1;
        }
    }

    /// Pins `id` if it still holds the block it held at `epoch`.
    pub(super) fn upgrade(&mut self, id: SlotId, epoch: u32) -> bool {
        let slot = &self.slots[id as usize];
        let alive = slot.epoch == epoch && (slot.registered || slot.life == Life::Active);
        if alive {
            self.pin(id);
        }
        alive
    }

    pub(super) fn epoch(&self, id: SlotId) -> u32 {
        self.slots[id as usize].epoch
    }

    /// Which of `keys` are registered; counts as no access.
    pub(super) fn contains(&self, keys: &[Key]) -> Vec<bool> {
        self.find_all(keys).map(|found| found.is_some()).collect()
    }

    /// Position of the first of `keys` that is registered; counts as no access.
    pub(super) fn first_present(&self, keys: &[Key]) -> Option<usize> {
        self.find_all(keys).position(|found| found.is_some())
    }

    /// Tells the policy that the blocks of `keys` were asked for, the last first.
    pub(super) fn touch(&mut self, keys: &[Key]) -> usize {
        let mut touched = 0;
        for &key in keys.iter().rev() {
            let Some(id) = self.find(self.mix(key), key) else { continue };
            touched += 1;
            let slot = &mut self.slots[id as usize];
            if slot.tracked {
                self.policy.touch(id);
            } else if slot.life == Life::Inactive {
                // Asked for while condemned: it has earned its place back.
                slot.tracked = true;
                let hash = self.mix(key);
                self.policy.insert(id, hash);
            }
        }
        touched
    }

    // ---- release -----------------------------------------------------------------------------

    /// Gives up one reader of each slot, the last first.
    pub(super) fn release(&mut self, ids: &[SlotId]) {
        for &id in ids.iter().rev() {
            let slot = &mut self.slots[id as usize];
            slot.refs -= 1;
            if slot.refs > 0 {
                continue;
            }
            self.active -= 1;
            if slot.registered {
                slot.life = Life::Inactive;
                self.inactive += 1;
                if slot.tracked {
                    self.policy.unpin(id);
                } else {
                    slot.tracked = true;
                    let hash = self.mix(self.slots[id as usize].key());
                    self.policy.insert(id, hash);
                }
            } else {
                self.release_unregistered(id);
            }
        }
    }

    /// The last reader of a duplicate, of a block from before a reset, or of a suspect is gone.
    #[cold]
    fn release_unregistered(&mut self, id: SlotId) {
        if self.slots[id as usize].suspect {
            self.end(id);
            self.slots[id as usize].life = Life::Quarantined;
            self.quarantined += 1;
        } else {
            self.remove_duplicate(id);
            self.end(id);
            self.free(id);
        }
    }

    // ---- quarantine and reset ----------------------------------------------------------------

    /// The bytes of these held slots are not what their keys say: no lookup finds them from now
    /// on, and when their last readers go the slots stay out of use.
    pub(super) fn quarantine(&mut self, ids: &[SlotId]) {
        for &id in ids {
            if self.slots[id as usize].registered {
                if self.slots[id as usize].tracked {
                    self.policy.remove(id);
                    self.slots[id as usize].tracked = false;
                }
                self.unregister(id);
            } else {
                self.remove_duplicate(id);
            }
            self.slots[id as usize].suspect = true;
        }
    }

    /// Takes all quarantined slots as mutable ones, for whoever wants to test their memory.
    pub(super) fn take_quarantined(&mut self, out: &mut Ids) {
        for (id, slot) in self.slots.iter_mut().enumerate() {
            if slot.life == Life::Quarantined {
                slot.life = Life::Mutable;
                out.push(id as SlotId);
            }
        }
        self.quarantined -= out.len();
        self.mutable += out.len();
    }

    /// Puts mutable slots out of use.
    pub(super) fn quarantine_mutable(&mut self, ids: &[SlotId]) {
        for &id in ids {
            self.slots[id as usize].life = Life::Quarantined;
        }
        self.mutable -= ids.len();
        self.quarantined += ids.len();
    }

    /// Forgets every block; returns how many slots are still held by handles.
    pub(super) fn reset(&mut self) -> usize {
        for id in 0..self.slots.len() as SlotId {
            let slot = &mut self.slots[id as usize];
            slot.registered = false;
            slot.next_duplicate = NONE;
            slot.parent = NONE;
            slot.first_child = NONE;
            slot.next_sibling = NONE;
            slot.prev_sibling = NONE;
            if std::mem::take(&mut slot.tracked) {
                self.policy.remove(id);
            }
            match self.slots[id as usize].life {
                Life::Inactive => {
                    self.end(id);
                    self.free(id);
                }
                Life::Active => {
                    let slot = &mut self.slots[id as usize];
                    slot.epoch = slot.epoch.wrapping_add(1);
                    slot.forgotten = true;
                }
                Life::Free | Life::Mutable | Life::Quarantined => {}
            }
        }
        self.inactive = 0;
        self.condemned.clear();
        self.index.clear();
        self.generation += 1;
        self.totals.resets += 1;
        if let Some(events) = &self.events {
            events.record_cleared(self.tier);
        }
        self.active + self.mutable
    }

    // ---- names and events --------------------------------------------------------------------

    pub(super) fn registration(&self, id: SlotId) -> Registration {
        let slot = &self.slots[id as usize];
        Registration {
            key: slot.key(),
            parent: self.parent_hash(id),
            engine_key: self.engine_key(id),
        }
    }

    /// Whether lookups of its key may give this block or one equal to it: not after a reset, not
    /// after its bytes failed verification.
    pub(super) fn is_current(&self, id: SlotId) -> bool {
        let slot = &self.slots[id as usize];
        !slot.forgotten && !slot.suspect
    }

    fn parent_hash(&self, id: SlotId) -> Option<SequenceHash> {
        self.slots[id as usize].has_parent.then(|| unpack(self.parents[id as usize]))
    }

    fn engine_key(&self, id: SlotId) -> Option<EngineKey> {
        self.slots[id as usize].has_engine_key.then(|| self.engine_keys[id as usize])
    }

    fn record(&self, kind: EventKind, id: SlotId) {
        if let Some(events) = &self.events {
            let block = match kind {
                EventKind::Allocated => EventBlock::slot(id),
                _ => {
                    let Registration { key, parent, engine_key } = self.registration(id);
                    EventBlock { block_id: id, key: Some(key), parent, engine_key }
                }
            };
            events.record(kind, self.tier, [block]);
        }
    }

    // ---- self-check --------------------------------------------------------------------------

    /// Recounts everything: every slot in exactly one place, every link both ways.
    pub(super) fn self_check(&self) -> Result<(), PoolError> {
        self.recount().map_err(|reason| PoolError::SelfCheck { tier: self.tier, reason })
    }

    fn recount(&self) -> Result<(), String> {
        let mut counts = [0_usize; 5];
        let mut registered = 0;
        let mut evictable = 0;
        for (id, slot) in self.slots.iter().enumerate() {
            let id = id as SlotId;
            counts[slot.life as usize] += 1;
            registered += usize::from(slot.registered);
            evictable += usize::from(slot.life == Life::Inactive && slot.tracked);
            let held = matches!(slot.life, Life::Active);
            if held != (slot.refs > 0) {
                return Err(format!("slot {id} is {:?} with {} readers", slot.life, slot.refs));
            }
            if slot.life == Life::Inactive && !slot.registered {
                return Err(format!("slot {id} is inactive and not in the index"));
            }
            if slot.registered {
                let found = self.find(self.mix(slot.key()), slot.key());
                if found != Some(id) {
                    return Err(format!("slot {id} is registered, a lookup finds {found:?}"));
                }
            }
            for link in [slot.parent, slot.first_child, slot.next_sibling, slot.prev_sibling] {
                if link != NONE && !(slot.registered && self.slots[link as usize].registered) {
                    return Err(format!("slot {id} is linked to {link}, one is not registered"));
                }
            }
        }
        let expected =
            [self.free.len(), self.mutable, self.active, self.inactive, self.quarantined];
        if counts != expected {
            return Err(format!(
                "free, mutable, active, inactive, quarantined are {counts:?}, booked {expected:?}"
            ));
        }
        if registered != self.index.len() {
            return Err(format!(
                "{registered} registered slots, {} in the index",
                self.index.len()
            ));
        }
        if evictable != self.policy.len() {
            return Err(format!("{evictable} evictable blocks, policy has {}", self.policy.len()));
        }
        Ok(())
    }
}
