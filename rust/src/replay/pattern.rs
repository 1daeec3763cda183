//! What a replayed block holds: bytes made from its key, at the speed of memory.
//!
//! The block is a row of 64-bit little-endian words. Word `i` is a counter that starts at the low
//! half of the key and grows by an odd step, scrambled by a bijection, and combined with the high
//! half: every byte depends on the key and on its place. Bytes of another block, from another place
//! of the same block, or with a flipped bit are noticed; nothing here resists an adversary.
//!
//! Filling and checking cost one multiplication per eight bytes and no memory beside the block.

use crate::tokens::SequenceHash;

const WORD: usize = size_of::<u64>();

/// Words made at a time: enough to keep the loop free of branches, few enough to stay in registers
/// and the first-level cache.
const STEP: usize = 64;

/// The counter's step: 2^64 over the golden ratio, whose multiples lie evenly.
const GROWTH: u64 = 0x9e37_79b9_7f4a_7c15;

/// An odd factor with no pattern of its own.
const FACTOR: u64 = 0xd6e8_feb8_6659_fd93;

/// The words of one block, in order.
struct Words {
    counter: u64,
    high: u64,
}

impl Words {
    fn of(key: SequenceHash) -> Self {
        let number = key.as_u128();
        Self { counter: number as u64, high: (number >> 64) as u64 }
    }

    fn take(&mut self) -> u64 {
        let mut word = self.counter;
        self.counter = self.counter.wrapping_add(GROWTH);
        word = (word ^ (word >> 32)).wrapping_mul(FACTOR);
        word ^ (word >> 32) ^ self.high
    }
}

/// Fills a block with the bytes of `key`.
pub(super) fn fill(key: SequenceHash, block: &mut [u8]) {
    let mut words = Words::of(key);
    let mut steps = block.chunks_exact_mut(STEP * WORD);
    for step in &mut steps {
        for place in step.chunks_exact_mut(WORD) {
            place.copy_from_slice(&words.take().to_le_bytes());
        }
    }
    for place in steps.into_remainder().chunks_mut(WORD) {
        place.copy_from_slice(&words.take().to_le_bytes()[..place.len()]);
    }
}

/// Whether a block holds the bytes of `key`, all of them.
pub(super) fn holds(key: SequenceHash, block: &[u8]) -> bool {
    let mut words = Words::of(key);
    let mut different = 0;
    let steps = block.chunks_exact(STEP * WORD);
    let rest = steps.remainder();
    for step in steps {
        for place in step.chunks_exact(WORD) {
            different |= word(place) ^ words.take();
        }
    }
    for place in rest.chunks(WORD) {
        let expected = words.take().to_le_bytes();
        different |= word(place) ^ word(&expected[..place.len()]);
    }
    different == 0
}

/// Up to eight bytes as a number.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; WORD];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(key: u128, len: usize) -> Vec<u8> {
        let mut block = vec![0; len];
        fill(SequenceHash::from_u128(key), &mut block);
        block
    }

    proptest! {
        #[test]
        fn any_changed_byte_is_noticed(
            key: u128, len in 1_usize..3000, at: prop::sample::Index, flip in 1_u8..,
        ) {
            let mut bytes = block(key, len);
            prop_assert!(holds(SequenceHash::from_u128(key), &bytes));
            bytes[at.index(len)] ^= flip;
            prop_assert!(!holds(SequenceHash::from_u128(key), &bytes));
        }

        #[test]
        fn no_block_passes_for_another(key: u128, other: u128, len in 16_usize..3000) {
            prop_assume!(key != other);
            prop_assert!(!holds(SequenceHash::from_u128(other), &block(key, len)));
        }

        #[test]
        fn no_part_passes_for_another(key: u128, words in 2_usize..300, by: prop::sample::Index) {
            let mut bytes = block(key, words * WORD);
            bytes.rotate_left(WORD * (1 + by.index(words - 1)));
            prop_assert!(!holds(SequenceHash::from_u128(key), &bytes));
        }
    }

    #[test]
    fn a_shorter_block_is_a_prefix_of_a_longer_one() {
        let long = block(7, 4096);
        for len in [0, 1, 7, 8, 511, 512, 513, 4095] {
            assert_eq!(block(7, len), long[..len]);
        }
    }
}
