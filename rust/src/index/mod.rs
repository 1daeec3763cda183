//! From a block's mixed hash to its slot.
//!
//! An open-addressed table of 64-bit entries, each half a tag (the hash's top 32 bits) and half a
//! slot number. Keys are not here: the owner keeps them in its slots and is asked to compare when
//! tags agree. An entry's home is the top bits of its own tag, so removal can close the gap behind
//! an entry (no tombstones, no rehash, ever) without looking at a key. Probing is linear and load
//! stays at or below 3/4, so nearly every probe ends in the cache line it began in.
//!
//! What it is not: it does not grow (tiers have a fixed number of slots), it does not lock, and it
//! does not mix: the hashes it is given must be spread evenly, which is what [`Mixer`] is for.
//!
//! Costs: 8 bytes an entry, 10.7 to 21.3 bytes a block at the full capacity. One lookup in a large
//! table is two cache misses (entry, slot); [`BlockIndex::find_all`] overlaps those of neighbours.

mod batch;
mod mixer;
mod prefetch;

pub use mixer::Mixer;
pub use prefetch::prefetch;

/// No entry. Slots are stored plus one, so that zeroed memory is an empty table.
const EMPTY: u64 = 0;

/// Smallest table, as a power of two: one cache line.
const MIN_BITS: u32 = 3;

/// Largest table, as a power of two: a home has no more bits than a tag.
const MAX_BITS: u32 = 32;

/// A fixed-size table from 64-bit mixed hashes to slots.
///
/// Several entries may have one hash; each (hash, slot) pair is there at most once if the caller
/// inserts it at most once.
#[derive(Debug)]
pub struct BlockIndex {
    /// A power of two of them; at least one is always [`EMPTY`], which ends every probe.
    entries: Vec<u64>,
    /// `home = tag >> shift`.
    shift: u32,
    len: usize,
    capacity: usize,
}

/// Where a probe stands: an entry whose tag agrees.
#[derive(Clone, Copy)]
struct Candidate {
    position: usize,
    slot: u32,
}

impl BlockIndex {
    /// An empty table with room for `capacity` entries.
    ///
    /// Memory is taken from the system at once and committed as entries are written.
    pub fn new(capacity: u32) -> Self {
        let wanted = (u64::from(capacity) * 4).div_ceil(3).next_power_of_two();
        let bits = wanted.trailing_zeros().clamp(MIN_BITS, MAX_BITS);
        let size = 1usize << bits;
        Self {
            entries: vec![EMPTY; size],
            shift: 32 - bits,
            len: 0,
            capacity: (capacity as usize).min(size - 1),
        }
    }

    /// The slot under `hash` for which `is_it` holds: it compares the key that the slot holds with
    /// the one that is looked for, and is called for slots with an equal tag only.
    #[inline]
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut candidate = self.first(hash);
        while let Some(found) = candidate {
            if is_it(found.slot) {
                return Some(found.slot);
            }
            candidate = self.next(hash, found);
        }
        None
    }

    /// Adds an entry; false when the table is full or `slot` is `u32::MAX`, which cannot be stored.
    #[must_use = "a refused entry is not in the table"]
    pub fn insert(&mut self, hash: u64, slot: u32) -> bool {
        if self.len == self.capacity || slot == u32::MAX {
            return false;
        }
        let mut position = self.home(hash);
        while self.entries[position] != EMPTY {
            position = self.after(position);
        }
        self.entries[position] = pack(hash, slot);
        self.len += 1;
        true
    }

    /// Takes the entry (`hash`, `slot`) out; false when it is not there.
    pub fn remove(&mut self, hash: u64, slot: u32) -> bool {
        let Some(mut gap) = self.position(hash, slot) else {
            return false;
        };
        // Close the gap: pull back each later entry of the run that may stand there, that is, whose
        // home does not lie cyclically within (gap, its position].
        let mask = self.entries.len() - 1;
        let mut position = gap;
        loop {
            position = self.after(position);
            let entry = self.entries[position];
            if entry == EMPTY {
                break;
            }
            let displacement = position.wrapping_sub(self.home(entry)) & mask;
            if displacement >= position.wrapping_sub(gap) & mask {
                self.entries[gap] = entry;
                gap = position;
            }
        }
        self.entries[gap] = EMPTY;
        self.len -= 1;
        true
    }

    /// Lets the entry (`hash`, `old`) name the slot `new`; false when it is not there or `new` is
    /// `u32::MAX`.
    #[must_use = "a refused replacement leaves the table as it was"]
    pub fn replace(&mut self, hash: u64, old: u32, new: u32) -> bool {
        if new == u32::MAX {
            return false;
        }
        let Some(position) = self.position(hash, old) else {
            return false;
        };
        self.entries[position] = pack(hash, new);
        true
    }

    /// Asks the CPU to fetch what a lookup of `hash` reads first.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        prefetch(&self.entries, self.home(hash));
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Drops all entries.
    pub fn clear(&mut self) {
        self.entries.fill(EMPTY);
        self.len = 0;
    }

    /// Bytes of the table, without this struct.
    pub fn memory_bytes(&self) -> usize {
        self.entries.len() * size_of::<u64>()
    }

    /// Works on a hash and on an entry alike: both have the tag on top.
    #[inline]
    fn home(&self, tagged: u64) -> usize {
        (tagged >> 32) as usize >> self.shift
    }

    #[inline]
    fn after(&self, position: usize) -> usize {
        (position + 1) & (self.entries.len() - 1)
    }

    /// The first entry with the tag of `hash`.
    #[inline]
    fn first(&self, hash: u64) -> Option<Candidate> {
        self.scan(hash, self.home(hash))
    }

    /// The next entry with the tag of `hash`.
    #[inline]
    fn next(&self, hash: u64, candidate: Candidate) -> Option<Candidate> {
        self.scan(hash, self.after(candidate.position))
    }

    #[inline]
    fn scan(&self, hash: u64, mut position: usize) -> Option<Candidate> {
        loop {
            let entry = self.entries[position];
            if entry == EMPTY {
                return None;
            }
            if entry >> 32 == hash >> 32 {
                return Some(Candidate { position, slot: entry as u32 - 1 });
            }
            position = self.after(position);
        }
    }

    fn position(&self, hash: u64, slot: u32) -> Option<usize> {
        if slot == u32::MAX {
            return None;
        }
        let wanted = pack(hash, slot);
        let mut position = self.home(hash);
        loop {
            match self.entries[position] {
                EMPTY => return None,
                entry if entry == wanted => return Some(position),
                _ => position = self.after(position),
            }
        }
    }
}

/// `slot` must not be `u32::MAX`.
#[inline]
fn pack(hash: u64, slot: u32) -> u64 {
    (hash >> 32 << 32) | u64::from(slot + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const CAPACITY: u32 = 24;

    /// Few distinct hashes, crowded at both ends of the table so that runs wrap around.
    fn hash() -> impl Strategy<Value = u64> {
        (prop_oneof![0u64..4, 28u64..32], 0u64..2).prop_map(|(home, rest)| home << 59 | rest << 32)
    }

    proptest! {
        #[test]
        fn agrees_with_a_map(
            steps in prop::collection::vec((0u8..4, hash(), 0u32..CAPACITY), 0..400),
        ) {
            let mut table = BlockIndex::new(CAPACITY);
            let mut model: HashMap<u32, u64> = HashMap::new();
            for (verb, hash, slot) in steps {
                let here = model.get(&slot) == Some(&hash);
                match verb {
                    0 | 1 if !model.contains_key(&slot) => {
                        prop_assert!(table.insert(hash, slot));
                        model.insert(slot, hash);
                    }
                    2 => {
                        prop_assert_eq!(table.remove(hash, slot), here);
                        if here {
                            model.remove(&slot);
                        }
                    }
                    3 => {
                        let new = (0..CAPACITY).find(|s| !model.contains_key(s)).unwrap_or(slot);
                        prop_assert_eq!(table.replace(hash, slot, new), here);
                        if here {
                            model.remove(&slot);
                            model.insert(new, hash);
                        }
                    }
                    _ => {}
                }
                prop_assert_eq!(table.len(), model.len());
                for slot in 0..CAPACITY {
                    let expected = model.get(&slot) == Some(&hash);
                    prop_assert_eq!(table.find(hash, |s| s == slot).is_some(), expected);
                }
            }
        }
    }

    #[test]
    fn refuses_what_it_cannot_hold() {
        let mut table = BlockIndex::new(1);
        assert!(!table.insert(7, u32::MAX));
        assert!(table.insert(u64::MAX, 0) && !table.insert(1, 1));
        assert!(!table.replace(u64::MAX, 0, u32::MAX) && !table.remove(u64::MAX, u32::MAX));
        table.clear();
        assert!(table.is_empty() && table.find(u64::MAX, |_| true).is_none());
        assert!(!BlockIndex::new(0).insert(1, 1));
    }
}
