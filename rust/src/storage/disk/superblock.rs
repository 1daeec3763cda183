//! The superblock: what the directory as a whole is.
//!
//! Two copies of 64 KiB. A copy: magic, version, length, sequence number, reset generation, the next
//! set's number, sets, fingerprints, and in its last 8 bytes the CRC-64/NVME of the rest. The copy
//! with the higher sequence number is in force.

use super::DiskError;
use super::bytes::{Reader, Writer, checksum};
use super::geometry::{Geometry, SetId};
use super::record::FingerprintId;
use super::report::Superblocks;
use crate::io::{FileOp, IoError, IoFile, read_full, write_full};

/// The version of the format that is read and written here.
pub const FORMAT_VERSION: u32 = 1;

pub(super) const NAME: &str = "dynamo.super";
const MAGIC: [u8; 8] = *b"DYNAMOKV";
pub(super) const COPY_BYTES: usize = 64 << 10;
/// Bytes of the file.
pub(super) const FILE_BYTES: u64 = 2 * COPY_BYTES as u64;
const HEADER: usize = 64;
const SET_BYTES: usize = 32;
pub(super) const MAX_SETS: usize = 64;
const FINGERPRINT_BYTES: usize = 128;
/// Fingerprints that one directory tells apart.
pub(super) const MAX_FINGERPRINTS: usize = 256;
/// Longest label of a fingerprint, in bytes; longer ones are cut.
const MAX_LABEL: usize = FINGERPRINT_BYTES - 32 - 2;

const _: () =
    assert!(HEADER + MAX_SETS * SET_BYTES + MAX_FINGERPRINTS * FINGERPRINT_BYTES + 8 <= COPY_BYTES);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NamedFingerprint {
    pub(super) digest: [u8; 32],
    pub(super) label: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Superblock {
    pub(super) sequence: u64,
    pub(super) generation: u64,
    /// The next set's number: none is used twice.
    pub(super) next_set: u32,
    pub(super) sets: Vec<(SetId, Geometry)>,
    /// By index; `None` is free.
    pub(super) fingerprints: Vec<Option<NamedFingerprint>>,
}

impl Superblock {
    pub(super) fn new() -> Self {
        Self { sequence: 0, generation: 1, next_set: 1, sets: Vec::new(), fingerprints: Vec::new() }
    }

    pub(super) fn fingerprint(&self, id: FingerprintId) -> Option<&NamedFingerprint> {
        self.fingerprints.get(usize::from(id.0))?.as_ref()
    }

    pub(super) fn find(&self, digest: &[u8; 32]) -> Option<FingerprintId> {
        let known = |entry: &Option<NamedFingerprint>| {
            entry.as_ref().is_some_and(|entry| entry.digest == *digest)
        };
        self.fingerprints.iter().position(known).map(|index| FingerprintId(index as u16))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut copy = vec![0; COPY_BYTES];
        let mut out = Writer(&mut copy[..HEADER]);
        out.put(&MAGIC);
        out.u32(FORMAT_VERSION);
        out.u32(COPY_BYTES as u32);
        out.u64(self.sequence);
        out.u64(self.generation);
        out.u32(self.next_set);
        out.u32(self.sets.len() as u32);
        out.u32(self.fingerprints.len() as u32);
        let sets = &mut copy[HEADER..HEADER + MAX_SETS * SET_BYTES];
        for (place, (id, geometry)) in sets.chunks_exact_mut(SET_BYTES).zip(&self.sets) {
            let mut out = Writer(place);
            out.u32(id.0);
            out.u32(geometry.tiles());
            out.u64(geometry.payload_bytes());
        }
        let entries = copy[HEADER + MAX_SETS * SET_BYTES..].chunks_exact_mut(FINGERPRINT_BYTES);
        for (place, entry) in entries.zip(&self.fingerprints) {
            let Some(entry) = entry else { continue };
            let mut end = entry.label.len().min(MAX_LABEL);
            while !entry.label.is_char_boundary(end) {
                end -= 1;
            }
            let mut out = Writer(place);
            out.put(&entry.digest);
            out.put(&[1, end as u8]);
            out.put(&entry.label.as_bytes()[..end]);
        }
        let (body, sum) = copy.split_at_mut(COPY_BYTES - 8);
        sum.copy_from_slice(&checksum(body).to_le_bytes());
        copy
    }

    /// Reads a copy. `Ok(None)`: it is damaged.
    fn decode(copy: &[u8]) -> Result<Option<Self>, DiskError> {
        let mut from = Reader(copy);
        if from.take() != MAGIC {
            return Ok(None);
        }
        let version = from.u32();
        if version > FORMAT_VERSION {
            return Err(DiskError::Version { found: version, known: FORMAT_VERSION });
        }
        let (body, mut sum) = (&copy[..COPY_BYTES - 8], Reader(&copy[COPY_BYTES - 8..]));
        if version != FORMAT_VERSION
            || from.u32() != COPY_BYTES as u32
            || sum.u64() != checksum(body)
        {
            return Ok(None);
        }
        let mut block = Self {
            sequence: from.u64(),
            generation: from.u64(),
            next_set: from.u32(),
            ..Self::new()
        };
        let (sets, fingerprints) = (from.u32() as usize, from.u32() as usize);
        for place in body[HEADER..].chunks_exact(SET_BYTES).take(sets.min(MAX_SETS)) {
            let mut from = Reader(place);
            let (id, tiles, payload) = (SetId(from.u32()), from.u32(), from.u64());
            let Ok(geometry) = Geometry::new(payload, tiles) else { return Ok(None) };
            block.sets.push((id, geometry));
        }
        let entries = body[HEADER + MAX_SETS * SET_BYTES..].chunks_exact(FINGERPRINT_BYTES);
        for place in entries.take(fingerprints.min(MAX_FINGERPRINTS)) {
            let mut from = Reader(place);
            let (digest, [used, len]) = (from.take(), from.take());
            let label = &place[34..34 + usize::from(len).min(MAX_LABEL)];
            let label = String::from_utf8_lossy(label).into_owned();
            block.fingerprints.push((used != 0).then_some(NamedFingerprint { digest, label }));
        }
        Ok(Some(block))
    }

    /// Reads the file: what is in force, and in what state the copies are.
    pub(super) fn read(file: &dyn IoFile) -> Result<(Option<Self>, Superblocks), DiskError> {
        let len = file.len().map_err(file.failed(FileOp::Stat, 0..0))?;
        if len == 0 {
            return Ok((None, Superblocks::Fresh));
        }
        let mut found = Vec::new();
        let mut unreadable = None;
        for number in 0..2 {
            let mut copy = vec![0; COPY_BYTES];
            let offset = number * COPY_BYTES as u64;
            match read_full(file, &mut [&mut copy], offset) {
                Ok(()) => found.extend(Self::decode(&copy)?),
                // Cut short, or sectors lost: the other copy may be whole.
                Err(IoError::Short { .. }) => {}
                Err(error @ IoError::Device { .. }) => unreadable = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        // What cannot be read now may be there another time: it is not lost.
        if let (true, Some(error)) = (found.is_empty(), unreadable) {
            return Err(error.into());
        }
        let state = match &found[..] {
            [] => Superblocks::Lost,
            [first, second] if first == second => Superblocks::Whole,
            _ => Superblocks::OneCopy,
        };
        Ok((found.into_iter().max_by_key(|block| block.sequence), state))
    }

    /// Writes and syncs one copy after the other.
    pub(super) fn write(&self, file: &dyn IoFile) -> Result<(), IoError> {
        let copy = self.encode();
        for number in 0..2 {
            write_full(file, &[&copy], number * COPY_BYTES as u64)?;
            file.sync_data().map_err(file.failed(FileOp::Sync, 0..0))?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_read_as_it_was_written_and_newer_formats_are_refused() {
        let mut block = Superblock::new();
        block.generation = 5;
        block.sets.push((SetId(1), Geometry::new(100, 3).unwrap()));
        let label = "é".repeat(80);
        block.fingerprints.push(None);
        block.fingerprints.push(Some(NamedFingerprint { digest: [2; 32], label }));
        let copy = block.encode();
        let read = Superblock::decode(&copy).unwrap().unwrap();
        assert_eq!(read.find(&[2; 32]), Some(FingerprintId(1)));
        assert_eq!(read.fingerprint(FingerprintId(1)).unwrap().label, "é".repeat(47));
        block.fingerprints[1].as_mut().unwrap().label.truncate(94);
        assert_eq!(read, block);

        let mut damaged = copy.clone();
        damaged[3000] ^= 1;
        assert_eq!(Superblock::decode(&damaged).unwrap(), None);
        let mut newer = copy;
        newer[8] = 2;
        let error = Superblock::decode(&newer).unwrap_err();
        assert!(matches!(error, DiskError::Version { found: 2, known: 1 }));
    }
}
