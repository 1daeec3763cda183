//! Spreads keys evenly over the table, whoever chose them.
//!
//! Sequence hashes look random, but some schemes are fast hashes whose collisions in any fixed set
//! of bits are easy to make, and a 64-bit engine hash leaves the upper half zero. The mixer is
//! therefore keyed with a secret of its own: two folded multiplications, each the 128-bit product of
//! two values masked by the secret, its halves xored. One is not enough: where half of the key never
//! varies it is multiplication by a constant, and one secret in a hundred leaves counters (as tests
//! and small engines use them for hashes) in a few clumps. About 2 ns.
//!
//! Mixed values mean nothing outside their mixer: they differ between instances and are never
//! stored or sent.

use std::hash::{BuildHasher, RandomState};

/// A keyed mixing function from block keys to 64-bit hashes.
#[derive(Clone)]
pub struct Mixer {
    secret: [u64; 4],
}

impl Mixer {
    /// A mixer with a fresh secret, drawn from the entropy behind the standard library's maps.
    pub fn new() -> Self {
        let source = RandomState::new();
        Self { secret: [0u64, 1, 2, 3].map(|word| source.hash_one(word)) }
    }

    /// The hash of a 128-bit `hash` within `group`.
    #[inline]
    pub fn mix(&self, hash: u128, group: u32) -> u64 {
        let [a, b, c, d] = self.secret;
        let group = u64::from(group).wrapping_mul(c);
        let once = fold(hash as u64 ^ a ^ group, (hash >> 64) as u64 ^ b);
        fold(once ^ c, d)
    }
}

impl Default for Mixer {
    fn default() -> Self {
        Self::new()
    }
}

/// The secret stays secret.
impl std::fmt::Debug for Mixer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mixer").finish_non_exhaustive()
    }
}

#[inline]
fn fold(x: u64, y: u64) -> u64 {
    let product = u128::from(x) * u128::from(y);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sets of keys that differ only in few bits, in the places where keys do.
    fn patterns() -> [Vec<(u128, u32)>; 4] {
        let numbers = 0u128..4096;
        [
            numbers.clone().map(|n| (n, 0)).collect(),
            numbers.clone().map(|n| (n << 64, 0)).collect(),
            numbers.clone().map(|n| (n << 116, 7)).collect(),
            numbers.map(|n| (42, n as u32)).collect(),
        ]
    }

    #[test]
    fn spreads_keys_that_differ_in_few_bits() {
        let mixer = Mixer::new();
        for keys in patterns() {
            let mut buckets = [0u32; 256];
            for (hash, group) in keys {
                buckets[(mixer.mix(hash, group) >> 56) as usize] += 1;
            }
            // 16 a bucket; an even spread of 4096 keys reaches 48 about once in 10^10 tries.
            assert!(buckets.iter().all(|&n| n < 48), "{buckets:?}");
        }
    }

    #[test]
    fn two_mixers_disagree() {
        let (one, two) = (Mixer::new(), Mixer::new());
        assert!((0..8).any(|n| one.mix(n, 0) != two.mix(n, 0)));
        assert!((0..8).all(|n| one.mix(n, 3) == one.clone().mix(n, 3)));
    }
}
