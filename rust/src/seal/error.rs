//! Why bytes do not verify.

use super::SealRoot;

/// A tiling that cannot be, or bytes that are not what was sealed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// An argument of a tiling that can never work.
    #[error("{field}: {value} cannot be tiled; {remedy}")]
    InvalidTiling {
        /// The argument.
        field: &'static str,
        /// What was given.
        value: u64,
        /// What to do instead.
        remedy: &'static str,
    },
    /// The seal is of a block with another number of tiles.
    #[error("sums: {found} were given for a seal of {expected} tiles; tile both sides alike")]
    TileCount {
        /// Tiles of the seal.
        expected: usize,
        /// Sums that were given.
        found: usize,
    },
    /// A tile that the seal does not have.
    #[error("tile: {tile} is not below the {tiles} tiles of the seal")]
    NoSuchTile {
        /// The tile asked for.
        tile: usize,
        /// Tiles of the seal.
        tiles: usize,
    },
    /// The bytes of a tile are not those that were sealed.
    #[error("tile {tile}: sum is {found:016x}, sealed was {expected:016x}; the bytes changed")]
    TileMismatch {
        /// The tile.
        tile: usize,
        /// The sealed sum.
        expected: u64,
        /// The sum of the bytes.
        found: u64,
    },
    /// The sums belong to another block, or to one of another fingerprint.
    #[error("seal root is {found}, sealed was {expected}; another block or another fingerprint")]
    RootMismatch {
        /// The sealed root.
        expected: SealRoot,
        /// The root of the sums under the identity and fingerprint that were asked for.
        found: SealRoot,
    },
}
