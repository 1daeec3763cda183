//! What travels with a block's bytes and proves them on arrival.
//!
//! A [`Seal`] is one CRC-64/NVME for each *tile* of the block and a root over identity, fingerprint
//! and all sums. The tiles ([`SealTiling`]) depend on the shape of the block alone, never on how a
//! tier lays it out or in which pieces it was copied, so any copier can take the sums and any other
//! can check them, tile by tile. The root binds the sums to what the block *is*: bytes of another
//! block, of another model, or in another order never verify.
//!
//! A seal finds accidents: flipped bits, torn copies, stale and swapped blocks. It is no signature;
//! who can write the bytes can write a seal that fits them.
//!
//! The identity comes in as bytes: this module knows nothing of keys.
//!
//! # Costs
//!
//! The sums run at memory speed (see [`Crc`]). The root is one BLAKE3 pass over 8 bytes per tile:
//! a microsecond for a block of tens of MiB.

mod crc;
mod error;
mod fingerprint;
mod root;
mod tiling;

pub use crc::Crc;
pub use error::SealError;
pub use fingerprint::{Fingerprint, FingerprintFields};
pub use root::{Seal, SealRoot};
pub use tiling::{Piece, SealTiling, TILE_BYTES, Tile};
