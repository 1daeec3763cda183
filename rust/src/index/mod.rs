//! From a block's mixed hash to its slot.
//!
//! An open-addressed table whose entries are half a tag (the hash's top 32 bits) and half a slot
//! number. Keys are not here: the owner keeps them in its slots and is asked to compare when tags
//! agree. Entries lie in buckets of eight, one cache line; a bucket's tags are compared all at
//! once, because where in it an entry lies is random and a mispredicted branch would cost more than
//! the comparison. A full bucket overflows into the next one. An entry's home is the top bits of
//! its own tag, so removal can close the gap behind it (no tombstones, no rehash, ever) without
//! looking at a key.
//!
//! Invariant: every bucket from an entry's home up to the one before its own is full. So a bucket
//! that is not ends every search.
//!
//! What it is not: it does not grow (tiers have a fixed number of slots), it does not lock, and it
//! does not mix: the hashes it is given must be spread evenly, which is what [`Mixer`] is for.
//!
//! Costs: 8 bytes an entry; at most three quarters are in use, so 10.7 to 21.3 bytes a block at
//! full capacity. One lookup in a large table is two cache misses (bucket, slot);
//! [`BlockIndex::find_all`] overlaps those of neighbours.

mod batch;
mod cpu;
mod mixer;

pub use cpu::prefetch;
pub use mixer::Mixer;

/// Entries of a bucket.
const WIDTH: usize = 8;

/// The tag of no entry: those of entries are odd.
const EMPTY: u32 = 0;

/// Most buckets, as a power of two: 2^32 entries.
const MAX_BITS: u32 = 29;

#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Bucket {
    tags: [u32; WIDTH],
    slots: [u32; WIDTH],
}

impl Bucket {
    const NEW: Bucket = Bucket { tags: [EMPTY; WIDTH], slots: [0; WIDTH] };

    /// One bit for each entry with this tag.
    #[inline]
    fn matching(&self, tag: u32) -> u32 {
        cpu::matching(&self.tags, tag)
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.matching(EMPTY) == 0
    }
}

/// A fixed-size table from 64-bit mixed hashes to slots.
///
/// Several entries may have one hash; each (hash, slot) pair is there at most once if the caller
/// inserts it at most once.
#[derive(Debug)]
pub struct BlockIndex {
    /// A power of two of them; at least one is never full.
    buckets: Vec<Bucket>,
    /// `home = tag >> shift`.
    shift: u32,
    len: usize,
    capacity: usize,
}

/// Where an entry is: its bucket and its place therein.
type Position = (usize, usize);

impl BlockIndex {
    /// An empty table with room for `capacity` entries.
    pub fn new(capacity: u32) -> Self {
        // Entries are at most three quarters of the places.
        let wanted = (u64::from(capacity) * 4).div_ceil(3 * WIDTH as u64).next_power_of_two();
        let bits = wanted.trailing_zeros().min(MAX_BITS);
        let size = 1usize << bits;
        Self {
            buckets: vec![Bucket::NEW; size],
            shift: 32 - bits,
            len: 0,
            capacity: (capacity as usize).min(size * WIDTH - 1),
        }
    }

    /// The slot under `hash` for which `is_it` holds: it compares the key that the slot holds with
    /// the one that is looked for, and is called for slots with an equal tag only.
    #[inline]
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let tag = tag(hash);
        let mut at = self.home(tag);
        loop {
            let bucket = &self.buckets[at];
            let mut agreeing = bucket.matching(tag);
            while agreeing != 0 {
                let slot = bucket.slots[agreeing.trailing_zeros() as usize % WIDTH];
                if is_it(slot) {
                    return Some(slot);
                }
                agreeing &= agreeing - 1;
            }
            if !bucket.is_full() {
                return None;
            }
            at = self.after(at);
        }
    }

    /// Adds an entry; false when the table is full.
    #[must_use = "a refused entry is not in the table"]
    pub fn insert(&mut self, hash: u64, slot: u32) -> bool {
        if self.len == self.capacity {
            return false;
        }
        let tag = tag(hash);
        let mut at = self.home(tag);
        while self.buckets[at].is_full() {
            at = self.after(at);
        }
        let place = self.buckets[at].matching(EMPTY).trailing_zeros() as usize % WIDTH;
        self.put((at, place), tag, slot);
        self.len += 1;
        true
    }

    /// Takes the entry (`hash`, `slot`) out; false when it is not there.
    pub fn remove(&mut self, hash: u64, slot: u32) -> bool {
        let Some(mut gap) = self.position(hash, slot) else {
            return false;
        };
        // Close the gap: pull back an entry of a later bucket that may stand there, one whose home
        // does not lie cyclically within (gap, its own bucket], until a bucket that is not full.
        let mut at = gap.0;
        while self.buckets[at].is_full() {
            at = self.after(at);
            let distance = self.distance(gap.0, at);
            let bucket = &self.buckets[at];
            let movable = |&place: &usize| {
                let tag = bucket.tags[place];
                tag != EMPTY && self.distance(self.home(tag), at) >= distance
            };
            if let Some(place) = (0..WIDTH).find(movable) {
                let (tag, slot) = (bucket.tags[place], bucket.slots[place]);
                self.put(gap, tag, slot);
                gap = (at, place);
            }
        }
        self.put(gap, EMPTY, 0);
        self.len -= 1;
        true
    }

    /// Lets the entry (`hash`, `old`) name the slot `new`; false when it is not there.
    #[must_use = "an entry that is not there is not replaced"]
    pub fn replace(&mut self, hash: u64, old: u32, new: u32) -> bool {
        let position = self.position(hash, old);
        if let Some(position) = position {
            self.put(position, tag(hash), new);
        }
        position.is_some()
    }

    /// Asks the CPU to fetch what a lookup of `hash` reads first.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        prefetch(&self.buckets, self.home(tag(hash)));
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
        self.buckets.fill(Bucket::NEW);
        self.len = 0;
    }

    /// Bytes of the table, without this struct.
    pub fn memory_bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    #[inline]
    fn home(&self, tag: u32) -> usize {
        (u64::from(tag) >> self.shift) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.buckets.len() - 1)
    }

    /// Buckets from one to another, going forward.
    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.buckets.len() - 1)
    }

    fn put(&mut self, (at, place): Position, tag: u32, slot: u32) {
        self.buckets[at].tags[place] = tag;
        self.buckets[at].slots[place] = slot;
    }

    fn position(&self, hash: u64, slot: u32) -> Option<Position> {
        let tag = tag(hash);
        let mut at = self.home(tag);
        loop {
            let bucket = &self.buckets[at];
            let is_it = |&place: &usize| bucket.tags[place] == tag && bucket.slots[place] == slot;
            if let Some(place) = (0..WIDTH).find(is_it) {
                return Some((at, place));
            }
            if !bucket.is_full() {
                return None;
            }
            at = self.after(at);
        }
    }
}

/// The top half of the hash, its last bit given up to tell entries from [`EMPTY`].
#[inline]
fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32 | 1
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const CAPACITY: u32 = 48;

    /// Few distinct hashes, crowded in the first and last of eight buckets so that these overflow
    /// and wrap around.
    fn hash() -> impl Strategy<Value = u64> {
        (prop_oneof![0u64..2, 6u64..8], 0u64..3).prop_map(|(home, rest)| home << 61 | rest << 33)
    }

    proptest! {
        #[test]
        fn agrees_with_a_map(
            steps in prop::collection::vec((0u8..6, hash(), 0u32..CAPACITY), 0..600),
        ) {
            let mut table = BlockIndex::new(CAPACITY);
            let mut model: HashMap<u32, u64> = HashMap::new();
            for (verb, hash, slot) in steps {
                let here = model.get(&slot) == Some(&hash);
                match verb {
                    0..=3 if !model.contains_key(&slot) => {
                        prop_assert!(table.insert(hash, slot));
                        model.insert(slot, hash);
                    }
                    4 => {
                        prop_assert_eq!(table.remove(hash, slot), here);
                        if here {
                            model.remove(&slot);
                        }
                    }
                    5 => {
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
        assert!(table.insert(u64::MAX, u32::MAX) && !table.insert(1, 1));
        assert_eq!(table.find(u64::MAX, |_| true), Some(u32::MAX));
        table.clear();
        assert!(table.is_empty() && table.find(u64::MAX, |_| true).is_none());
        assert!(!BlockIndex::new(0).insert(1, 1));
    }
}
