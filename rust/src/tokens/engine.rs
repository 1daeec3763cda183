//! The engine's own name of a block.

use std::fmt;

use super::TokenError;

/// The engine's own name of a block, 1 to 40 bytes, compared whole on every hit.
///
/// Engines name blocks by hashes of their own; ours may be cut from them, theirs stay whole beside
/// the slot and are given back with evictions and events.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EngineKey {
    /// Zero past `len`, so that equality needs no care.
    bytes: [u8; Self::MAX_LEN],
    len: u8,
}

impl EngineKey {
    /// Longest engine key: vLLM's 32-byte hash and 4-byte group, with room to spare.
    pub const MAX_LEN: usize = 40;

    /// The key with these bytes; [`TokenError::EngineKeyLength`] when there are none or too many.
    pub fn new(key: &[u8]) -> Result<Self, TokenError> {
        if key.is_empty() || key.len() > Self::MAX_LEN {
            return Err(TokenError::EngineKeyLength { len: key.len() });
        }
        let mut bytes = [0; Self::MAX_LEN];
        bytes[..key.len()].copy_from_slice(key);
        Ok(Self { bytes, len: key.len() as u8 })
    }

    /// The bytes as given.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Display for EngineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for EngineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineKey({self})")
    }
}

impl TryFrom<&[u8]> for EngineKey {
    type Error = TokenError;

    fn try_from(key: &[u8]) -> Result<Self, TokenError> {
        Self::new(key)
    }
}
