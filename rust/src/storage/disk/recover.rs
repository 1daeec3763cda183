//! Reading the tables of a directory.
//!
//! Each table is read once, in order, in large pieces; a piece that the drive cannot read is tried
//! again page by page, so that a bad sector costs the records in it. Nothing is changed here: what
//! must be erased is listed, and an owner does it.

use std::collections::BTreeMap;
use std::ops::Range;

use super::geometry::DiskSlot;
use super::record::{Parsed, RECORD_BYTES, parse};
use super::set::{DiskSet, Marks};
use super::superblock::Superblock;
use super::{DropReason, RecoveredBlock};
use crate::index::{BlockIndex, Mixer};
use crate::io::{AlignedBuffer, IO_ALIGNMENT, IoError, read_full};

/// Bytes of a piece.
const PIECE: usize = 4 << 20;

/// What the tables say.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) blocks: Vec<RecoveredBlock>,
    pub(super) dropped: BTreeMap<DropReason, u64>,
    /// Records that are whole and must not be seen again.
    pub(super) erase: Vec<DiskSlot>,
    pub(super) holes: Vec<DiskSlot>,
}

/// A table that is being read.
struct Source<'a> {
    set: &'a DiskSet,
    superblock: &'a Superblock,
    /// Slots that have data; records past them speak of nothing.
    slots: u32,
}

impl Scan {
    fn drop(&mut self, reason: DropReason) {
        *self.dropped.entry(reason).or_default() += 1;
    }

    /// Reads the table of a set.
    pub(super) fn read(&mut self, set: &DiskSet, superblock: &Superblock) -> Result<(), IoError> {
        self.read_by_piece(set, superblock, |_| ()).map(drop)
    }

    /// Reads the table of a set, and shows what is known so far after each piece, in which nothing
    /// is written while it is read. Returns the slots of the set.
    pub(super) fn read_by_piece(
        &mut self,
        set: &DiskSet,
        superblock: &Superblock,
        mut after: impl FnMut(&mut Self),
    ) -> Result<u32, IoError> {
        let (slots, records) = set.lengths()?;
        let mut buffer = AlignedBuffer::new(PIECE.min(records as usize * RECORD_BYTES));
        let per_piece = (PIECE / RECORD_BYTES) as u32;
        let from = Source { set, superblock, slots };
        for start in (0..records).step_by(per_piece as usize) {
            let range = start..records.min(start.saturating_add(per_piece));
            let bytes = &mut buffer[..range.len() * RECORD_BYTES];
            let offset = u64::from(start) * RECORD_BYTES as u64;
            let unwritten = set.marks.lock();
            match read_full(&*set.table, &mut [&mut *bytes], offset) {
                Ok(()) => self.piece(&from, range, bytes),
                Err(IoError::Device { .. }) => self.pages(&from, &range, bytes)?,
                Err(error) => return Err(error),
            }
            drop(unwritten);
            after(self);
        }
        Ok(slots)
    }

    fn pages(
        &mut self,
        from: &Source<'_>,
        range: &Range<u32>,
        bytes: &mut [u8],
    ) -> Result<(), IoError> {
        let table = &*from.set.table;
        let per_page = (IO_ALIGNMENT / RECORD_BYTES) as u32;
        for start in range.clone().step_by(per_page as usize) {
            let page = start..range.end.min(start + per_page);
            let bytes = &mut bytes[..page.len() * RECORD_BYTES];
            match read_full(table, &mut [&mut *bytes], u64::from(start) * RECORD_BYTES as u64) {
                Ok(()) => self.piece(from, page, bytes),
                Err(IoError::Device { .. }) => {
                    *self.dropped.entry(DropReason::Unreadable).or_default() += page.len() as u64;
                    self.erase.extend(page.map(|slot| from.set.slot(slot)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn piece(&mut self, from: &Source<'_>, range: Range<u32>, bytes: &[u8]) {
        let Source { set, superblock, slots } = *from;
        for (number, raw) in range.zip(bytes.chunks_exact(RECORD_BYTES)) {
            let slot = set.slot(number);
            let parsed = parse(raw, slot);
            if number >= slots && !matches!(parsed, Parsed::Empty) {
                self.drop(DropReason::NoData);
                continue;
            }
            let (record, sequence, check) = match parsed {
                Parsed::Empty => continue,
                Parsed::Hole => {
                    self.holes.push(slot);
                    continue;
                }
                Parsed::Torn => {
                    self.drop(DropReason::Torn);
                    continue;
                }
                Parsed::Misplaced => {
                    self.drop(DropReason::Misplaced);
                    continue;
                }
                Parsed::Block { record, sequence, fingerprint } => (record, sequence, fingerprint),
            };
            let known = superblock
                .fingerprint(record.fingerprint)
                .is_some_and(|known| known.digest[..16] == check);
            let reason = if record.generation != superblock.generation {
                Some(DropReason::Generation)
            } else if !known {
                Some(DropReason::Fingerprint)
            } else if record.stored_len > set.geometry.payload_bytes() {
                Some(DropReason::Length)
            } else {
                None
            };
            let Some(reason) = reason else {
                self.blocks.push(RecoveredBlock { slot, sequence, record });
                continue;
            };
            self.drop(reason);
            // An older generation never becomes the present one again; all else could.
            if reason != DropReason::Generation || record.generation > superblock.generation {
                self.erase.push(slot);
            }
        }
    }

    /// Keeps the newest of the records that name the same block.
    pub(super) fn deduplicate(&mut self) {
        let mixer = Mixer::new();
        let mut newest = BlockIndex::new(u32::try_from(self.blocks.len()).unwrap_or(u32::MAX - 1));
        let mut older = Vec::new();
        for (at, block) in self.blocks.iter().enumerate() {
            let record = &block.record;
            let hash = mixer.mix(u128::from_le_bytes(record.key), record.group);
            let same = |other: u32| {
                let other = &self.blocks[other as usize].record;
                (other.key, other.group, other.fingerprint)
                    == (record.key, record.group, record.fingerprint)
            };
            match newest.find(hash, same) {
                None => drop(newest.insert(hash, at as u32)),
                Some(other) if self.blocks[other as usize].sequence < block.sequence => {
                    let _ = newest.replace(hash, other, at as u32);
                    older.push(other as usize);
                }
                Some(_) => older.push(at),
            }
        }
        if older.is_empty() {
            return;
        }
        older.sort_unstable();
        for at in older.into_iter().rev() {
            // A removal from the middle of a long list would be slow; the order is restored below.
            let block = self.blocks.swap_remove(at);
            self.erase.push(block.slot);
            self.drop(DropReason::Duplicate);
        }
        self.blocks.sort_unstable_by_key(|block| block.slot);
    }

    /// The marks of a set after all this, everything to be erased being erased.
    pub(super) fn marks(&self, set: &DiskSet, slots: u32) -> Marks {
        let mut marks = Marks::new(slots);
        let of_set = |slot: &DiskSlot| slot.set == set.id;
        for slot in self.holes.iter().filter(|slot| of_set(slot)) {
            marks.set_hole(slot.slot);
        }
        for block in self.blocks.iter().filter(|block| of_set(&block.slot)) {
            marks.set_block(block.slot.slot, block.record.fingerprint);
        }
        marks
    }
}
