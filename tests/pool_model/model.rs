//! What a pool must do, said plainly: maps, counts, and the bytes of every slot.
//!
//! The model does not know which block a policy gives up. It is told the slots that came back and
//! checks that each could be given up at that moment; everything else it predicts.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
};

use dynamo_llm::block_manager::{
    Key, SequenceHash, SlotId, metrics::PoolMetrics, pool::Registration,
};

/// What a sink is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Allocated(SlotId),
    Registered(SlotId, Registration),
    Matched(SlotId, Registration),
    Evicted(SlotId, Registration),
    Cleared,
}

/// What the owner of a slot wrote into it: a name, and a number that no other write has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) name: Registration,
    pub(crate) stamp: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Registered,
    Duplicate,
    /// Its hash collides with that of another block.
    Stranger,
    Forgotten,
    Suspect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Free,
    Mutable,
    Block { name: Registration, readers: usize, standing: Standing },
    Quarantined,
}

/// What a weak handle must compare: the write, and the resets that it saw.
pub(crate) type Identity = (u64, u64);

/// Where the slots of a section are: free, mutable, active, inactive, quarantined.
pub(crate) type Counts = [usize; 5];

pub(crate) struct Model {
    sections: Vec<Range<SlotId>>,
    places: Vec<Place>,
    /// The memory: what was last written, whoever has the slot now.
    pub(crate) bytes: Vec<Option<Content>>,
    registered: BTreeMap<Key, SlotId>,
    duplicates: BTreeMap<Key, VecDeque<SlotId>>,
    /// Child to parent, of blocks whose parent was there when they came and has not gone since.
    links: BTreeMap<Key, Key>,
    pub(crate) totals: PoolMetrics,
    pub(crate) expected: Vec<Told>,
    stamps: u64,
}

impl Model {
    pub(crate) fn new(capacities: impl Iterator<Item = usize>) -> Self {
        let mut sections: Vec<Range<SlotId>> = Vec::new();
        for capacity in capacities {
            let base = sections.last().map_or(0, |before| before.end);
            sections.push(base..base + capacity as SlotId);
        }
        let capacity = sections.last().map_or(0, |last| last.end as usize);
        Self {
            sections,
            places: vec![Place::Free; capacity],
            bytes: vec![None; capacity],
            registered: BTreeMap::new(),
            duplicates: BTreeMap::new(),
            links: BTreeMap::new(),
            totals: PoolMetrics { capacity: capacity as u64, ..Default::default() },
            expected: Vec::new(),
            stamps: 0,
        }
    }

    fn count(&self, is: impl Fn(&Place) -> bool) -> usize {
        self.places.iter().filter(|place| is(place)).count()
    }

    pub(crate) fn free(&self) -> usize {
        self.count(|place| *place == Place::Free)
    }

    pub(crate) fn inactive(&self) -> usize {
        self.count(|place| matches!(place, Place::Block { readers: 0, .. }))
    }

    pub(crate) fn held(&self) -> usize {
        let held = |place: &Place| matches!(place, Place::Block { readers, .. } if *readers > 0);
        self.count(held) + self.count(|place| *place == Place::Mutable)
    }

    pub(crate) fn quarantined(&self) -> usize {
        self.count(|place| *place == Place::Quarantined)
    }

    pub(crate) fn metrics(&self) -> PoolMetrics {
        let mutable = self.count(|place| *place == Place::Mutable);
        PoolMetrics {
            free: self.free() as u64,
            mutable: mutable as u64,
            active: (self.held() - mutable) as u64,
            inactive: self.inactive() as u64,
            quarantined: self.quarantined() as u64,
            ..self.totals.clone()
        }
    }

    pub(crate) fn section_of(&self, id: SlotId) -> usize {
        self.sections.iter().position(|slots| slots.contains(&id)).unwrap()
    }

    /// Of each section.
    pub(crate) fn sections(&self) -> Vec<(Range<SlotId>, Counts)> {
        let counts = |slots: &Range<SlotId>| {
            let mut counts = Counts::default();
            for place in &self.places[slots.start as usize..slots.end as usize] {
                counts[match place {
                    Place::Free => 0,
                    Place::Mutable => 1,
                    Place::Block { readers: 1.., .. } => 2,
                    Place::Block { .. } => 3,
                    Place::Quarantined => 4,
                }] += 1;
            }
            counts
        };
        self.sections.iter().map(|slots| (slots.clone(), counts(slots))).collect()
    }

    /// Of each idle block, the sections of those that cannot go before it: the idle ones that it
    /// continues, up to the first that is in use or has a duplicate to leave its place to.
    pub(crate) fn waiting_for(&self) -> BTreeMap<SlotId, BTreeSet<usize>> {
        let idle = self.registered.iter().filter(|&(_, &id)| self.is_idle(id));
        idle.map(|(&key, &id)| {
            let parent = |key: &Key| self.links.get(key).copied();
            let waiting = std::iter::successors(parent(&key), parent).map_while(|key| {
                let succeeded = self.duplicates.get(&key).is_some_and(|others| !others.is_empty());
                let id = *self.registered.get(&key)?;
                (self.is_idle(id) && !succeeded).then(|| self.section_of(id))
            });
            (id, waiting.collect())
        })
        .collect()
    }

    pub(crate) fn is_registered(&self, key: Key) -> bool {
        self.registered.contains_key(&key)
    }

    /// Keys whose registered block is idle while a duplicate of it is in use.
    pub(crate) fn with_successors(&self) -> Vec<(Key, SlotId)> {
        let idle = |id: SlotId| self.is_idle(id);
        let all = self.registered.iter().filter(|&(key, &id)| {
            idle(id) && self.duplicates.get(key).is_some_and(|others| !others.is_empty())
        });
        all.map(|(&key, &id)| (key, id)).collect()
    }

    fn is_idle(&self, id: SlotId) -> bool {
        matches!(self.places[id as usize], Place::Block { readers: 0, .. })
    }

    /// `ids` were handed out to be written.
    pub(crate) fn allocated(&mut self, ids: &[SlotId]) {
        let free = self.free();
        let evictions = self.totals.evictions;
        for &id in ids {
            if self.places[id as usize] != Place::Free {
                self.evicted(id);
            }
            self.handed_out(id);
        }
        let evicted = (self.totals.evictions - evictions) as usize;
        assert_eq!(evicted, ids.len().saturating_sub(free), "evicted while there was room");
        self.expected.extend(ids.iter().map(|&id| Told::Allocated(id)));
    }

    /// The free slot `id` was handed out to be written.
    pub(crate) fn handed_out(&mut self, id: SlotId) {
        assert_eq!(self.places[id as usize], Place::Free);
        self.places[id as usize] = Place::Mutable;
        // The owner writes at once: whoever still reads the slot would see it.
        self.bytes[id as usize] = None;
        self.totals.allocations += 1;
    }

    /// The policy gave up the block in `id`.
    pub(crate) fn evicted(&mut self, id: SlotId) {
        let Place::Block { name, readers: 0, standing: Standing::Registered } =
            self.places[id as usize]
        else {
            panic!("slot {id} was evicted as {:?}", self.places[id as usize]);
        };
        self.totals.evictions += 1;
        if !self.unregister(id, name) {
            let orphan = self.links.iter().find(|&(child, &parent)| {
                parent == name.key && self.is_idle(self.registered[child])
            });
            assert!(orphan.is_none(), "{:?} left before the idle {orphan:?}", name.key);
            self.unlink(name.key);
        }
        self.places[id as usize] = Place::Free;
    }

    /// Takes the block out of the lookups; whether a duplicate stands in for it.
    fn unregister(&mut self, id: SlotId, name: Registration) -> bool {
        if let Some(heir) = self.duplicates.get_mut(&name.key).and_then(VecDeque::pop_front) {
            self.registered.insert(name.key, heir);
            self.set_standing(heir, Standing::Registered);
            return true;
        }
        self.registered.remove(&name.key);
        self.expected.push(Told::Evicted(id, name));
        false
    }

    fn unlink(&mut self, key: Key) {
        self.links.retain(|&child, &mut parent| child != key && parent != key);
    }

    fn set_standing(&mut self, id: SlotId, to: Standing) {
        match &mut self.places[id as usize] {
            Place::Block { standing, .. } => *standing = to,
            other => panic!("slot {id} is {other:?}, not a block"),
        }
    }

    /// The owner of `ids` fills them and gives them names; returns what it wrote.
    pub(crate) fn registered(&mut self, ids: &[SlotId], names: &[Registration]) -> Vec<u64> {
        let mut stamps = Vec::new();
        for (&id, &name) in ids.iter().zip(names) {
            assert_eq!(self.places[id as usize], Place::Mutable);
            self.stamps += 1;
            stamps.push(self.stamps);
            self.bytes[id as usize] = Some(Content { name, stamp: self.stamps });
            let standing = if let Some(&primary) = self.registered.get(&name.key) {
                self.totals.duplicates += 1;
                if self.name(primary).engine_key == name.engine_key {
                    self.duplicates.entry(name.key).or_default().push_back(id);
                    Standing::Duplicate
                } else {
                    Standing::Stranger
                }
            } else {
                self.totals.registrations += 1;
                self.registered.insert(name.key, id);
                self.expected.push(Told::Registered(id, name));
                let parent = name.parent.map(|hash| Key::new(hash, name.key.group));
                if let Some(parent) = parent.filter(|&parent| parent != name.key)
                    && self.is_registered(parent)
                {
                    self.links.insert(name.key, parent);
                }
                Standing::Registered
            };
            self.places[id as usize] = Place::Block { name, readers: 1, standing };
        }
        stamps
    }

    pub(crate) fn name(&self, id: SlotId) -> Registration {
        match self.places[id as usize] {
            Place::Block { name, .. } => name,
            other => panic!("slot {id} is {other:?}, not a block"),
        }
    }

    /// The slots that a lookup must give and hold.
    pub(crate) fn matched(&mut self, wanted: &[Registration], by_engine_key: bool) -> Vec<SlotId> {
        let mut ids = Vec::new();
        for name in wanted {
            let Some(&id) = self.registered.get(&name.key) else { break };
            if by_engine_key && self.name(id).engine_key != name.engine_key {
                break;
            }
            ids.push(id);
        }
        self.pinned(&ids);
        self.totals.hits += ids.len() as u64;
        self.totals.misses += (wanted.len() - ids.len()) as u64;
        let told = ids.iter().map(|&id| Told::Matched(id, self.name(id))).collect::<Vec<_>>();
        self.expected.extend(told);
        ids
    }

    pub(crate) fn pinned(&mut self, ids: &[SlotId]) {
        for &id in ids {
            match &mut self.places[id as usize] {
                Place::Block { readers, .. } => *readers += 1,
                other => panic!("slot {id} is {other:?}, not a block"),
            }
        }
    }

    /// Readers of `ids` are gone.
    pub(crate) fn released(&mut self, ids: &[SlotId]) {
        for &id in ids {
            let Place::Block { name, readers, standing } = &mut self.places[id as usize] else {
                panic!("slot {id} has no reader");
            };
            *readers -= 1;
            if *readers == 0 {
                let (name, standing) = (*name, *standing);
                if standing == Standing::Suspect {
                    self.places[id as usize] = Place::Quarantined;
                } else if standing != Standing::Registered {
                    self.forget_duplicate(id, name.key);
                    self.places[id as usize] = Place::Free;
                }
            }
        }
    }

    fn forget_duplicate(&mut self, id: SlotId, key: Key) {
        if let Some(others) = self.duplicates.get_mut(&key) {
            others.retain(|&other| other != id);
        }
    }

    pub(crate) fn freed(&mut self, ids: &[SlotId]) {
        for &id in ids {
            assert_eq!(self.places[id as usize], Place::Mutable);
            self.places[id as usize] = Place::Free;
        }
    }

    /// The bytes of these held slots proved wrong.
    pub(crate) fn suspected(&mut self, ids: &[SlotId]) {
        for &id in ids {
            let Place::Block { name, standing, .. } = self.places[id as usize] else {
                panic!("slot {id} is not a block");
            };
            if standing == Standing::Registered {
                if !self.unregister(id, name) {
                    self.unlink(name.key);
                }
            } else {
                self.forget_duplicate(id, name.key);
            }
            self.set_standing(id, Standing::Suspect);
        }
    }

    pub(crate) fn put_out_of_use(&mut self, ids: &[SlotId]) {
        for &id in ids {
            self.places[id as usize] = Place::Quarantined;
        }
    }

    /// `ids` are all that was out of use, taken to be tested.
    pub(crate) fn taken_back(&mut self, ids: &[SlotId]) {
        for &id in ids {
            assert_eq!(self.places[id as usize], Place::Quarantined);
            self.places[id as usize] = Place::Mutable;
        }
        assert_eq!(self.quarantined(), 0);
    }

    pub(crate) fn reset(&mut self) {
        for place in &mut self.places {
            match place {
                Place::Block { readers: 0, .. } => *place = Place::Free,
                Place::Block { standing: Standing::Suspect, .. } => {}
                Place::Block { standing, .. } => *standing = Standing::Forgotten,
                _ => {}
            }
        }
        self.registered.clear();
        self.duplicates.clear();
        self.links.clear();
        self.totals.resets += 1;
        self.expected.push(Told::Cleared);
    }

    pub(crate) fn is_current(&self, id: SlotId) -> bool {
        let Place::Block { standing, .. } = self.places[id as usize] else { return false };
        !matches!(standing, Standing::Forgotten | Standing::Suspect)
    }

    pub(crate) fn is_duplicate(&self, id: SlotId) -> bool {
        let Place::Block { standing, .. } = self.places[id as usize] else { return false };
        matches!(standing, Standing::Duplicate | Standing::Stranger)
    }

    pub(crate) fn identity(&self, id: SlotId) -> Identity {
        // A block from before a reset is another thing to weak handles than it was.
        let Place::Block { standing, .. } = self.places[id as usize] else { return (0, 0) };
        let eras = if standing == Standing::Forgotten { self.totals.resets } else { 0 };
        (self.bytes[id as usize].map_or(0, |content| content.stamp), eras)
    }

    /// Whether a weak handle may have the block back.
    pub(crate) fn is_readable(&self, id: SlotId) -> bool {
        let Place::Block { standing, .. } = self.places[id as usize] else { return false };
        standing != Standing::Suspect
    }
}

/// Four sequences of six blocks: pairs share their first two, and the second pair is the first in
/// another group, under the same hashes.
pub(crate) fn name(sequence: u8, position: u8) -> Registration {
    let hash = |position: u8| {
        let branch = if position < 2 { 7 } else { sequence % 2 };
        SequenceHash::from_u128(u128::from(branch) << 100 | u128::from(position) << 3 | 1)
    };
    Registration {
        key: Key::new(hash(position), u32::from(sequence / 2)),
        parent: position.checked_sub(1).map(hash),
        engine_key: None,
    }
}
