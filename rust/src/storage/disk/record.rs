//! What a slot holds, in 256 bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | CRC-64/NVME of bytes 8..256 |
//! | 8..16 | sequence number |
//! | 16..24 | reset generation |
//! | 24..32 | last use |
//! | 32..40 | set, slot: a record in the wrong place is none |
//! | 40..48 | stored length |
//! | 48..64 | key hash |
//! | 64..80 | parent hash |
//! | 80..96 | seal root |
//! | 96..104 | group, depth |
//! | 104..108 | fingerprint index, codec |
//! | 108..112 | kind (1 block, 2 hole), flags (1 has a parent), length of the engine key, 0 |
//! | 112..152 | engine key |
//! | 152..168 | first bytes of the fingerprint, against an index that was used again |
//! | 168..256 | 0 |
//!
//! Numbers are little-endian. 256 zero bytes are an empty slot.

use std::fmt;

use super::DiskError;
use super::bytes::{Reader, Writer, checksum};
use super::geometry::{DiskSlot, SetId};

/// Bytes of a record: two to a sector, so none crosses one.
pub const RECORD_BYTES: usize = 256;

/// Longest name that an engine gives a block.
const MAX_NAME: usize = 40;

pub(super) type RawRecord = [u8; RECORD_BYTES];

/// An empty slot.
pub(super) const EMPTY: RawRecord = [0; RECORD_BYTES];

/// Place of a fingerprint in the directory's table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FingerprintId(pub(super) u16);

impl FingerprintId {
    /// The number.
    pub fn index(self) -> u16 {
        self.0
    }
}

/// An engine's own name of a block: up to 40 bytes, opaque.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EngineName {
    len: u8,
    bytes: [u8; MAX_NAME],
}

impl EngineName {
    /// The name with these bytes; no bytes where an engine has no names.
    ///
    /// # Errors
    ///
    /// [`DiskError::InvalidConfig`] for more than 40 bytes.
    pub fn new(name: &[u8]) -> Result<Self, DiskError> {
        let mut bytes = [0; MAX_NAME];
        let Some(place) = bytes.get_mut(..name.len()) else {
            return Err(DiskError::InvalidConfig {
                field: "engine key",
                value: format!("{} bytes", name.len()),
                remedy: "give at most 40 bytes",
            });
        };
        place.copy_from_slice(name);
        Ok(Self { len: name.len() as u8, bytes })
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Default for EngineName {
    fn default() -> Self {
        Self { len: 0, bytes: [0; MAX_NAME] }
    }
}

impl fmt::Debug for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What is known of the block in a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskRecord {
    /// Hash that names the block.
    pub key: [u8; 16],
    /// Group that it belongs to; part of its name.
    pub group: u32,
    /// The engine's own name.
    pub engine: EngineName,
    /// Hash of the block before it; `None` for the first of a chain.
    pub parent: Option<[u8; 16]>,
    /// Blocks before it in its chain, at least.
    pub depth: u32,
    /// How its bytes are read; part of its name.
    pub fingerprint: FingerprintId,
    /// How its bytes are packed; 0 = not.
    pub codec: u16,
    /// Bytes of the payload that are in use.
    pub stored_len: u64,
    /// Root of its seal.
    pub seal_root: [u8; 16],
    /// Reset generation that it was stored under.
    pub generation: u64,
    /// When it was last used, in the owner's own count.
    pub last_use: u64,
}

/// What the bytes of a record say.
#[derive(Debug)]
pub(super) enum Parsed {
    Empty,
    Hole,
    Block {
        record: DiskRecord,
        sequence: u64,
        fingerprint: [u8; 16],
    },
    /// Some of its bytes are wrong.
    Torn,
    /// Whole, and of another place.
    Misplaced,
}

const BLOCK: u8 = 1;
const HOLE: u8 = 2;
const HAS_PARENT: u8 = 1;

fn seal(mut raw: RawRecord) -> RawRecord {
    let sum = checksum(&raw[8..]);
    raw[..8].copy_from_slice(&sum.to_le_bytes());
    raw
}

/// The mark of a slot whose room was given back.
pub(super) fn hole(slot: DiskSlot) -> RawRecord {
    let mut raw = EMPTY;
    let mut place = Writer(&mut raw[32..40]);
    place.u32(slot.set.0);
    place.u32(slot.slot);
    raw[108] = HOLE;
    seal(raw)
}

impl DiskRecord {
    pub(super) fn encode(
        &self,
        slot: DiskSlot,
        sequence: u64,
        fingerprint: &[u8; 32],
    ) -> RawRecord {
        let mut raw = EMPTY;
        let mut out = Writer(&mut raw[8..]);
        out.u64(sequence);
        out.u64(self.generation);
        out.u64(self.last_use);
        out.u32(slot.set.0);
        out.u32(slot.slot);
        out.u64(self.stored_len);
        out.put(&self.key);
        out.put(&self.parent.unwrap_or_default());
        out.put(&self.seal_root);
        out.u32(self.group);
        out.u32(self.depth);
        out.u16(self.fingerprint.0);
        out.u16(self.codec);
        let flags = if self.parent.is_some() { HAS_PARENT } else { 0 };
        out.put(&[BLOCK, flags, self.engine.len, 0]);
        out.put(&self.engine.bytes);
        out.put(&fingerprint[..16]);
        seal(raw)
    }
}

/// Reads the record of `slot`.
pub(super) fn parse(raw: &[u8], slot: DiskSlot) -> Parsed {
    if raw == EMPTY {
        return Parsed::Empty;
    }
    let mut from = Reader(raw);
    if raw.len() != RECORD_BYTES || from.u64() != checksum(&raw[8..]) {
        return Parsed::Torn;
    }
    let (sequence, generation, last_use) = (from.u64(), from.u64(), from.u64());
    let place = DiskSlot { set: SetId(from.u32()), slot: from.u32() };
    let stored_len = from.u64();
    let (key, parent, seal_root) = (from.take(), from.take(), from.take());
    let (group, depth) = (from.u32(), from.u32());
    let (fingerprint, codec) = (FingerprintId(from.u16()), from.u16());
    let [kind, flags, len, _] = from.take();
    let engine = EngineName { len, bytes: from.take() };
    if place != slot {
        return Parsed::Misplaced;
    }
    match kind {
        HOLE => Parsed::Hole,
        BLOCK if usize::from(len) <= MAX_NAME => Parsed::Block {
            record: DiskRecord {
                key,
                group,
                engine,
                parent: (flags & HAS_PARENT != 0).then_some(parent),
                depth,
                fingerprint,
                codec,
                stored_len,
                seal_root,
                generation,
                last_use,
            },
            sequence,
            fingerprint: from.take(),
        },
        _ => Parsed::Torn,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_no_changed_bit_passes() {
        let slot = DiskSlot { set: SetId(7), slot: 3 };
        let record = DiskRecord {
            key: [1; 16],
            group: 2,
            engine: EngineName::new(&[3; 36]).unwrap(),
            parent: Some([4; 16]),
            depth: 5,
            fingerprint: FingerprintId(6),
            codec: 7,
            stored_len: 8,
            seal_root: [9; 16],
            generation: 10,
            last_use: 11,
        };
        let raw = record.encode(slot, 12, &[13; 32]);
        let Parsed::Block { record: read, sequence: 12, fingerprint } = parse(&raw, slot) else {
            panic!("{:?}", parse(&raw, slot));
        };
        assert_eq!((read, fingerprint), (record, [13; 16]));
        assert!(matches!(parse(&raw, DiskSlot { slot: 4, ..slot }), Parsed::Misplaced));
        for bit in 0..RECORD_BYTES * 8 {
            let mut raw = raw;
            raw[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(parse(&raw, slot), Parsed::Torn), "bit {bit}");
        }
        assert!(matches!(parse(&hole(slot), slot), Parsed::Hole));
        assert!(matches!(parse(&EMPTY, slot), Parsed::Empty));
        assert!(EngineName::new(&[0; 41]).is_err());
    }
}
