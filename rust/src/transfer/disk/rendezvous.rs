//! Which drive a block goes to: rendezvous hashing, weighted.
//!
//! Each drive draws a number for each key, by hash; the key goes to the drive whose number, stretched
//! by the drive's weight, is largest (the logarithmic method: Mosharaf and Schindelhauer; Schindelhauer
//! and Schomaker, "Weighted distributed hash tables", SPAA 2005). So drives get keys in proportion to
//! their weights, and one that comes, goes or grows moves no key between two others.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::tokens::Key;

/// A drive as a candidate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    seed: u64,
    weight: f64,
}

impl Candidate {
    /// One that is known by `name`, wherever it stands in a list.
    pub(super) fn new(name: &str, weight: usize) -> Self {
        Self { seed: xxh3_64_with_seed(name.as_bytes(), 0), weight: weight as f64 }
    }

    fn score(&self, key: &[u8]) -> f64 {
        // Never 0 nor 1: half a step of 53 bits away from both.
        let drawn = (xxh3_64_with_seed(key, self.seed) >> 11) as f64 + 0.5;
        self.weight / -(drawn / (1_u64 << 53) as f64).ln()
    }
}

/// Position of the one that `key` goes to, of those that `takes` allows, of all where it allows none.
pub(super) fn home(candidates: &[Candidate], takes: &[bool], key: &Key) -> usize {
    let key = key.to_bytes();
    let any = takes.contains(&true);
    let scores = candidates.iter().zip(takes).enumerate();
    scores
        .filter(|&(_, (_, &takes))| takes || !any)
        .map(|(position, (candidate, _))| (position, candidate.score(&key)))
        .max_by(|(_, one), (_, other)| one.total_cmp(other))
        .map_or(0, |(position, _)| position)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::SequenceHash;

    const KEYS: u64 = 40_000;

    fn keys() -> impl Iterator<Item = Key> {
        (0..KEYS).map(|n| Key::new(SequenceHash::from_u128(u128::from(n) << 70 | 5), n as u32 % 3))
    }

    fn homes(candidates: &[Candidate], takes: &[bool]) -> Vec<usize> {
        keys().map(|key| home(candidates, takes, &key)).collect()
    }

    #[test]
    fn keys_spread_by_weight_and_only_those_of_a_drive_that_leaves_move() {
        let drives = [("/a", 100), ("/b", 300), ("/c", 600)].map(|(n, w)| Candidate::new(n, w));
        let all = homes(&drives, &[true; 3]);
        for (position, share) in [0.1, 0.3, 0.6].into_iter().enumerate() {
            let found = all.iter().filter(|&&home| home == position).count() as f64;
            // Five standard deviations.
            let slack = 5.0 * (KEYS as f64 * share * (1.0 - share)).sqrt();
            assert!((found - KEYS as f64 * share).abs() < slack, "{position}: {found}");
        }
        let without = homes(&drives, &[true, false, true]);
        for (before, after) in all.iter().zip(&without) {
            assert!(*before == 1 || before == after);
            assert_ne!(*after, 1);
        }
        assert_eq!(homes(&drives, &[false; 3]), all, "none takes: each keeps its own");
        let turned: Vec<_> = homes(&[drives[2], drives[0], drives[1]], &[true; 3]);
        assert!(all.iter().zip(turned).all(|(&one, other)| [1, 2, 0][one] == other));
    }
}
