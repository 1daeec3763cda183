//! Our names of blocks: [`SequenceHash`] and [`Key`].

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::TokenError;

/// 128-bit identity of a block: chained over parent, tokens and everything else that changes the
/// bytes. An unsigned 128-bit number; bytes are little-endian, text is 32 hex digits, highest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SequenceHash(u128);

impl SequenceHash {
    /// The hash whose number is `value`.
    pub const fn from_u128(value: u128) -> Self {
        Self(value)
    }

    /// The hash with these 16 bytes, little-endian: the inverse of [`as_bytes`](Self::as_bytes).
    pub const fn from_le_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_le_bytes(bytes))
    }

    /// The hash for an engine's own hash of 8, 16 or 32 bytes: its number read big-endian, of which
    /// the low 128 bits are kept. Any other length is a [`TokenError::HashLength`].
    pub fn from_engine_hash(bytes: &[u8]) -> Result<Self, TokenError> {
        match bytes.len() {
            8 | 16 | 32 => {
                let low = &bytes[bytes.len().saturating_sub(16)..];
                Ok(Self(low.iter().fold(0, |number, &byte| number << 8 | u128::from(byte))))
            }
            len => Err(TokenError::HashLength { len }),
        }
    }

    /// The hash as a number.
    pub const fn as_u128(self) -> u128 {
        self.0
    }

    /// The 16 bytes, little-endian.
    pub const fn as_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    /// Whether the upper 64 bits are zero: a 64-bit hash, too short to name bytes outside one
    /// process.
    pub const fn is_64_bit(self) -> bool {
        self.0 >> 64 == 0
    }
}

impl From<u128> for SequenceHash {
    fn from(value: u128) -> Self {
        Self(value)
    }
}

impl From<SequenceHash> for u128 {
    fn from(hash: SequenceHash) -> Self {
        hash.0
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

impl FromStr for SequenceHash {
    type Err = TokenError;

    /// Reads the 32 hexadecimal digits of the displayed form, in either case.
    fn from_str(text: &str) -> Result<Self, TokenError> {
        // The digits are checked one by one because the number's own parser also takes a sign.
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = if digits { u128::from_str_radix(text, 16).ok() } else { None };
        number.map(Self).ok_or_else(|| TokenError::HashText { text: text.to_owned() })
    }
}

impl Serialize for SequenceHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SequenceHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
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

impl Key {
    /// The block `hash` of layer group `group`.
    pub const fn new(hash: SequenceHash, group: u32) -> Self {
        Self { hash, group }
    }

    /// Hash, then group, little-endian: what seals and records bind bytes to.
    pub fn to_bytes(self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[..16].copy_from_slice(&self.hash.as_bytes());
        bytes[16..].copy_from_slice(&self.group.to_le_bytes());
        bytes
    }
}

impl From<SequenceHash> for Key {
    fn from(hash: SequenceHash) -> Self {
        Self { hash, group: 0 }
    }
}
