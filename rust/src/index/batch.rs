//! Lookups of many hashes, their cache misses overlapped.
//!
//! A lookup waits for memory twice: for the bucket, then for the slot whose key is compared. A
//! pipeline of three stages keeps several of each under way: `AHEAD` hashes before its turn a
//! bucket is prefetched, half of that before its turn the bucket is read and its slot prefetched.
//! In a table that fits in cache there is nothing to wait for and the pipeline is left out.

use super::BlockIndex;

/// Distance, in hashes, between asking for a bucket and comparing a key: about as many cache misses
/// as one core keeps in flight.
const AHEAD: usize = 32;

/// Distance between asking for a slot and comparing its key.
const NEAR: usize = AHEAD / 2;

/// Tables up to here are taken to be in cache: a share of the level 2 cache of a server core.
const CACHED_BYTES: usize = 256 << 10;

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
        let is_cached = self.memory_bytes() <= CACHED_BYTES;
        // Rings by sequence number: hashes asked for, the first slot whose tag agrees.
        let mut asked_hashes = [0u64; AHEAD];
        let mut candidates = [None; NEAR];
        let (mut asked, mut read, mut done) = (0usize, 0usize, 0usize);
        std::iter::from_fn(move || {
            if is_cached {
                let found = self.find(hashes.next()?, |slot| is_it(done, slot));
                done += 1;
                return Some(found);
            }
            while asked < done + AHEAD {
                let Some(hash) = hashes.next() else { break };
                self.prefetch(hash);
                asked_hashes[asked % AHEAD] = hash;
                asked += 1;
            }
            while read < asked.min(done + NEAR) {
                let candidate = self.find(asked_hashes[read % AHEAD], |_| true);
                if let Some(slot) = candidate {
                    fetch(slot);
                }
                candidates[read % NEAR] = candidate;
                read += 1;
            }
            if done == read {
                return None;
            }
            let found = match candidates[done % NEAR] {
                // Tags of different keys agree once in a thousand times or less.
                Some(slot) if !is_it(done, slot) => {
                    self.find(asked_hashes[done % AHEAD], |slot| is_it(done, slot))
                }
                candidate => candidate,
            };
            done += 1;
            Some(found)
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
