//! Sizes of slots, and where they lie.

use std::fmt;
use std::ops::Range;

use super::DiskError;
use crate::io::{IO_ALIGNMENT, IoFile};
use crate::sync::Arc;

const ALIGNMENT: u64 = IO_ALIGNMENT as u64;

/// Largest payload: a block of the largest models has some hundred MiB.
const MAX_PAYLOAD: u64 = 1 << 34;
const MAX_TILES: u32 = 1 << 20;

/// What decides the size of a slot. Blocks of one geometry share a set of files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Geometry {
    payload_bytes: u64,
    tiles: u32,
}

impl Geometry {
    /// Slots for blocks of at most `payload_bytes`, whose seals have `tiles` sums.
    ///
    /// # Errors
    ///
    /// [`DiskError::InvalidConfig`] for a payload of 0 or more than 16 GiB, and for more than 2^20
    /// tiles.
    pub fn new(payload_bytes: u64, tiles: u32) -> Result<Self, DiskError> {
        let invalid = |field, value: u64, remedy| {
            Err(DiskError::InvalidConfig { field, value: value.to_string(), remedy })
        };
        if payload_bytes == 0 || payload_bytes > MAX_PAYLOAD {
            return invalid("payload_bytes", payload_bytes, "give 1 byte to 16 GiB");
        }
        if tiles > MAX_TILES {
            return invalid("tiles", tiles.into(), "give at most 1048576, with larger tiles");
        }
        Ok(Self { payload_bytes, tiles })
    }

    /// The most bytes that a block has.
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// Sums of a block's seal.
    pub fn tiles(&self) -> u32 {
        self.tiles
    }

    /// Bytes of a slot before the sums.
    pub fn padded_payload(&self) -> u64 {
        self.payload_bytes.next_multiple_of(ALIGNMENT)
    }

    /// Bytes of a slot behind the payload.
    pub fn padded_sums(&self) -> u64 {
        (u64::from(self.tiles) * 8).next_multiple_of(ALIGNMENT)
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> u64 {
        self.padded_payload() + self.padded_sums()
    }

    pub(super) fn data_range(&self, slots: Range<u32>) -> Range<u64> {
        let at = |slot: u32| u64::from(slot) * self.slot_bytes();
        at(slots.start)..at(slots.end)
    }
}

/// A set of files of one geometry; the number is never used again in its directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SetId(pub(super) u32);

impl fmt::Display for SetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// One slot of a directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DiskSlot {
    /// Which set of files.
    pub set: SetId,
    /// Number in it.
    pub slot: u32,
}

impl fmt::Display for DiskSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {} of set {}", self.slot, self.set)
    }
}

/// Where the bytes of a slot lie.
#[derive(Clone, Debug)]
pub struct SlotPlace {
    /// The data file.
    pub file: Arc<dyn IoFile>,
    /// First byte of the payload.
    pub offset: u64,
    /// Bytes of the payload, padded.
    pub payload: u64,
    /// Bytes of the sums, padded; they follow the payload.
    pub sums: u64,
}
