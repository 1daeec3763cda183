//! Lookups of many hashes, their cache misses overlapped.
//!
//! A lookup waits for memory twice: for the entry, then for the slot whose key is compared. A
//! pipeline of three stages keeps several of each under way: `AHEAD` hashes before its turn an
//! entry is prefetched, half of that before its turn the entry is read and its slot prefetched.

use super::{BlockIndex, Candidate};

/// Distance, in hashes, between asking for an entry and comparing its key: about as many cache
/// misses as one core keeps in flight.
const AHEAD: usize = 16;

/// Distance between asking for a slot and comparing its key.
const NEAR: usize = AHEAD / 2;

impl BlockIndex {
    /// The slots of many hashes, in their order, found as the result is iterated: stopping at the
    /// first miss is the search for the longest prefix.
    ///
    /// `fetch(slot)` prefetches what `is_it(i, slot)` will read to compare the `i`-th key with that
    /// of `slot`; see [`prefetch`](super::prefetch()).
    pub fn find_all(
        &self,
        hashes: impl IntoIterator<Item = u64>,
        fetch: impl Fn(u32),
        mut is_it: impl FnMut(usize, u32) -> bool,
    ) -> impl Iterator<Item = Option<u32>> {
        let mut hashes = hashes.into_iter();
        // Rings by sequence number: hashes asked for, candidates read, lookups finished.
        let mut asked_hashes = [0u64; AHEAD];
        let mut candidates: [Option<Candidate>; NEAR] = [None; NEAR];
        let (mut asked, mut read, mut done) = (0usize, 0usize, 0usize);
        std::iter::from_fn(move || {
            while asked < done + AHEAD {
                let Some(hash) = hashes.next() else { break };
                self.prefetch(hash);
                asked_hashes[asked % AHEAD] = hash;
                asked += 1;
            }
            while read < asked.min(done + NEAR) {
                let candidate = self.first(asked_hashes[read % AHEAD]);
                if let Some(found) = candidate {
                    fetch(found.slot);
                }
                candidates[read % NEAR] = candidate;
                read += 1;
            }
            if done == read {
                return None;
            }
            let hash = asked_hashes[done % AHEAD];
            let mut candidate = candidates[done % NEAR];
            while let Some(found) = candidate {
                if is_it(done, found.slot) {
                    break;
                }
                candidate = self.next(hash, found);
            }
            done += 1;
            Some(candidate.map(|found| found.slot))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Mixer, prefetch};
    use super::*;

    proptest! {
        #[test]
        fn finds_what_single_lookups_find(
            stored in prop::collection::hash_set(0u128..200, 0..100),
            asked in prop::collection::vec(0u128..200, 0..80),
        ) {
            let keys: Vec<u128> = stored.into_iter().collect();
            let mixer = Mixer::new();
            let mut index = BlockIndex::new(100);
            for (slot, &key) in keys.iter().enumerate() {
                prop_assert!(index.insert(mixer.mix(key, 0), slot as u32));
            }
            let found: Vec<Option<u32>> = index
                .find_all(
                    asked.iter().map(|&key| mixer.mix(key, 0)),
                    |slot| prefetch(&keys, slot as usize),
                    |i, slot| keys[slot as usize] == asked[i],
                )
                .collect();
            let expected: Vec<Option<u32>> = asked
                .iter()
                .map(|key| keys.iter().position(|k| k == key).map(|slot| slot as u32))
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
