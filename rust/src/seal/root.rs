//! The seal itself.
//!
//! Root = first 16 bytes of BLAKE3 over a domain tag, the identity with its length, the 32 bytes of
//! the fingerprint, the number of tiles and their sums; all integers are little-endian u64. Fixed
//! for ever, like the tiles.
//!
//! A seal that was read from somewhere is only a claim: its own sums may be damaged. Both verify
//! methods therefore recompute the root over the sealed sums before they call anything good.

use std::fmt;

use super::{Fingerprint, SealError};
use crate::sync::Arc;

const DOMAIN: &[u8] = b"dynamo_llm seal v1";

/// Binds the sums of a block to its identity and fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SealRoot([u8; 16]);

impl SealRoot {
    fn of(identity: &[u8], fingerprint: &Fingerprint, sums: &[u64]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(DOMAIN);
        hasher.update(&(identity.len() as u64).to_le_bytes());
        hasher.update(identity);
        hasher.update(fingerprint.as_bytes());
        hasher.update(&(sums.len() as u64).to_le_bytes());
        for sum in sums {
            hasher.update(&sum.to_le_bytes());
        }
        let mut root = [0; 16];
        hasher.finalize_xof().fill(&mut root);
        Self(root)
    }

    /// The root that these bytes are, as kept in a record.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes to keep in a record.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for SealRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SealRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealRoot({self})")
    }
}

/// The sums of a block's tiles under one root. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    root: SealRoot,
    sums: Arc<[u64]>,
}

impl Seal {
    /// Seals `sums`, one for each tile in order, as those of the block with this identity.
    pub fn new(identity: &[u8], fingerprint: &Fingerprint, sums: impl Into<Arc<[u64]>>) -> Self {
        let sums = sums.into();
        Self { root: SealRoot::of(identity, fingerprint, &sums), sums }
    }

    /// The seal as it was kept beside the bytes; true only once it verifies.
    pub fn from_parts(root: SealRoot, sums: impl Into<Arc<[u64]>>) -> Self {
        Self { root, sums: sums.into() }
    }

    /// The root.
    pub fn root(&self) -> SealRoot {
        self.root
    }

    /// The sums, one for each tile in order.
    pub fn sums(&self) -> &[u64] {
        &self.sums
    }

    /// Checks a whole block: `found` are the sums of the bytes that arrived, tile by tile.
    ///
    /// # Errors
    ///
    /// [`SealError`]: another number of tiles, the first tile that differs, or another root.
    pub fn verify(
        &self,
        identity: &[u8],
        fingerprint: &Fingerprint,
        found: &[u64],
    ) -> Result<(), SealError> {
        if found.len() != self.sums.len() {
            return Err(SealError::TileCount { expected: self.sums.len(), found: found.len() });
        }
        self.verify_part(identity, fingerprint, found.iter().copied().enumerate())
    }

    /// Checks a part of a block: `found` are the tiles that arrived, with the sums of their bytes.
    ///
    /// # Errors
    ///
    /// [`SealError`]: a tile that is not there, the first tile that differs, or another root.
    pub fn verify_part(
        &self,
        identity: &[u8],
        fingerprint: &Fingerprint,
        found: impl IntoIterator<Item = (usize, u64)>,
    ) -> Result<(), SealError> {
        for (tile, found) in found {
            let tiles = self.sums.len();
            let expected = *self.sums.get(tile).ok_or(SealError::NoSuchTile { tile, tiles })?;
            if found != expected {
                return Err(SealError::TileMismatch { tile, expected, found });
            }
        }
        let root = SealRoot::of(identity, fingerprint, &self.sums);
        if root != self.root {
            return Err(SealError::RootMismatch { expected: self.root, found: root });
        }
        Ok(())
    }
}
