//! The names of blocks: ours ([`SequenceHash`], [`Key`]) and the engine's ([`EngineKey`]).

use std::fmt;

/// 128-bit identity of a block: chained over parent, tokens and everything else that changes the
/// bytes. An unsigned 128-bit number; bytes are little-endian, text is 32 hex digits, highest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SequenceHash(u128);

impl SequenceHash {
    /// The hash whose number is `value`.
    pub const fn from_u128(value: u128) -> Self {
        Self(value)
    }

    /// The hash as a number.
    pub const fn as_u128(self) -> u128 {
        self.0
    }

    /// The 16 bytes, little-endian.
    pub const fn as_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }
}

impl fmt::Display for SequenceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for SequenceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SequenceHash({self})")
    }
}

/// What a pool is asked for: a sequence hash within a group of layers.
///
/// Groups are the sets of layers that share one block table (full attention, a sliding window, a
/// recurrent state); a plain model has only group 0. One sequence hash names different bytes in
/// different groups.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Key {
    /// Identity of the tokens and all that changes their bytes.
    pub hash: SequenceHash,
    /// Which group of layers.
    pub group: u32,
}

impl From<SequenceHash> for Key {
    fn from(hash: SequenceHash) -> Self {
        Self { hash, group: 0 }
    }
}

/// The engine's own name of a block, at most 40 bytes, compared whole on every hit.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EngineKey {
    bytes: [u8; Self::MAX_LEN],
    len: u8,
}

impl EngineKey {
    /// Longest engine key: vLLM's 32-byte hash and 4-byte group, with room to spare.
    pub const MAX_LEN: usize = 40;

    /// The bytes as given.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}
