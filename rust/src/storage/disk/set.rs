//! The two files of one geometry, and what each slot is in use for.

use std::ops::Range;

use super::geometry::{DiskSlot, Geometry, SetId};
use super::record::{EMPTY, FingerprintId, RECORD_BYTES, RawRecord};
use super::{DiskError, SlotPlace};
use crate::io::{FileOp, IoError, IoFile, OpenFile, Volume, read_full, write_full};
use crate::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, Ordering},
};

/// Marks of a slot beside the index of the fingerprint that has a record there.
const FREE: u16 = u16::MAX;
const HOLE: u16 = u16::MAX - 1;

const PREFIX: &str = "dynamo-";
const SUFFIXES: [&str; 2] = [".data", ".table"];

/// Names of a set's data and table file.
pub(super) fn names(id: SetId) -> [String; 2] {
    SUFFIXES.map(|suffix| format!("{PREFIX}{id}{suffix}"))
}

/// Whether a file has a name that only we give.
pub(super) fn is_ours(name: &str) -> bool {
    let rest = name
        .strip_prefix(PREFIX)
        .and_then(|rest| SUFFIXES.iter().find_map(|suffix| rest.strip_suffix(suffix)));
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    rest.is_some_and(|id| id.len() == 8 && id.bytes().all(hex))
}

#[derive(Debug)]
pub(super) struct DiskSet {
    pub(super) id: SetId,
    pub(super) geometry: Geometry,
    pub(super) data: Arc<dyn IoFile>,
    pub(super) table: Arc<dyn IoFile>,
    /// Also the length of `marks`; for those who only want a place.
    slots: AtomicU32,
    /// Held across the writes of records, so that they are made in one order.
    pub(super) marks: Mutex<Marks>,
}

/// What each slot is in use for.
#[derive(Debug, Default)]
pub(super) struct Marks {
    marks: Vec<u16>,
    holes: u32,
}

impl Marks {
    pub(super) fn new(slots: u32) -> Self {
        Self { marks: vec![FREE; slots as usize], holes: 0 }
    }

    pub(super) fn len(&self) -> u32 {
        self.marks.len() as u32
    }

    pub(super) fn holes(&self) -> u32 {
        self.holes
    }

    fn set(&mut self, slot: u32, mark: u16) {
        if let Some(now) = self.marks.get_mut(slot as usize) {
            self.holes += u32::from(mark == HOLE);
            self.holes -= u32::from(*now == HOLE);
            *now = mark;
        }
    }

    pub(super) fn set_block(&mut self, slot: u32, fingerprint: FingerprintId) {
        self.set(slot, fingerprint.index());
    }

    pub(super) fn set_hole(&mut self, slot: u32) {
        self.set(slot, HOLE);
    }

    pub(super) fn set_free(&mut self, slot: u32) {
        self.set(slot, FREE);
    }

    pub(super) fn is_hole(&self, slot: u32) -> bool {
        self.marks.get(slot as usize) == Some(&HOLE)
    }

    pub(super) fn has_block(&self, slot: u32) -> bool {
        self.marks.get(slot as usize).is_some_and(|&mark| mark < HOLE)
    }

    pub(super) fn fingerprints(&self) -> impl Iterator<Item = FingerprintId> + '_ {
        self.marks.iter().filter(|&&mark| mark < HOLE).map(|&mark| FingerprintId(mark))
    }

    /// Forgets all records; holes stay holes.
    pub(super) fn reset(&mut self) {
        for mark in self.marks.iter_mut().filter(|mark| **mark < HOLE) {
            *mark = FREE;
        }
    }

    pub(super) fn grow(&mut self, slots: u32) {
        self.marks.resize(slots as usize, FREE);
    }
}

impl DiskSet {
    /// Opens the files, to write or to look.
    pub(super) fn open(
        volume: &dyn Volume,
        id: SetId,
        geometry: Geometry,
        how: OpenFile,
    ) -> Result<Self, IoError> {
        let [data, table] = names(id);
        let data = volume.open(&data, how)?;
        // Several records share a sector, so the table goes through the page cache.
        let table = volume.open(&table, OpenFile { direct: false, ..how })?;
        let slots = AtomicU32::new(0);
        Ok(Self { id, geometry, data, table, slots, marks: Mutex::new(Marks::default()) })
    }

    /// Slots that have both data and a record, and records there are.
    pub(super) fn lengths(&self) -> Result<(u32, u32), IoError> {
        let len = |file: &dyn IoFile| file.len().map_err(file.failed(FileOp::Stat, 0..0));
        let clamp = |count: u64| u32::try_from(count).unwrap_or(u32::MAX - 1);
        let records = clamp(len(&*self.table)? / RECORD_BYTES as u64);
        let slots = clamp(len(&*self.data)? / self.geometry.slot_bytes());
        Ok((slots.min(records), records))
    }

    pub(super) fn install(&self, marks: Marks) {
        let mut now = self.marks.lock();
        self.slots.store(marks.len(), Ordering::Release);
        *now = marks;
    }

    /// Room in use, in bytes.
    pub(super) fn used(&self) -> u64 {
        let marks = self.marks.lock();
        let (slots, holes) = (u64::from(marks.len()), u64::from(marks.holes()));
        slots * RECORD_BYTES as u64 + (slots - holes) * self.geometry.slot_bytes()
    }

    pub(super) fn slots(&self) -> u32 {
        self.slots.load(Ordering::Acquire)
    }

    pub(super) fn set_slots(&self, slots: u32) {
        self.slots.store(slots, Ordering::Release);
    }

    pub(super) fn slot(&self, slot: u32) -> DiskSlot {
        DiskSlot { set: self.id, slot }
    }

    pub(super) fn check(&self, slot: u32) -> Result<(), DiskError> {
        let slots = self.slots();
        if slot < slots {
            return Ok(());
        }
        Err(DiskError::NoSuchSlot { slot: self.slot(slot), slots })
    }

    pub(super) fn place(&self, slot: u32) -> SlotPlace {
        SlotPlace {
            file: self.data.clone(),
            offset: self.geometry.data_range(slot..slot + 1).start,
            payload: self.geometry.padded_payload(),
            sums: self.geometry.padded_sums(),
        }
    }

    /// Writes one record.
    pub(super) fn put(&self, slot: u32, raw: &RawRecord) -> Result<(), IoError> {
        write_full(&*self.table, &[raw], u64::from(slot) * RECORD_BYTES as u64)
    }

    pub(super) fn erase(&self, slot: u32) -> Result<(), IoError> {
        self.put(slot, &EMPTY)
    }

    pub(super) fn get(&self, slot: u32) -> Result<RawRecord, IoError> {
        let mut raw = EMPTY;
        read_full(&*self.table, &mut [&mut raw], u64::from(slot) * RECORD_BYTES as u64)?;
        Ok(raw)
    }

    pub(super) fn sync_table(&self) -> Result<(), IoError> {
        self.table.sync_data().map_err(self.table.failed(FileOp::Sync, 0..0))
    }

    pub(super) fn sync_data(&self) -> Result<(), IoError> {
        self.data.sync_data().map_err(self.data.failed(FileOp::Sync, 0..0))
    }

    /// Cuts both files to `slots`.
    pub(super) fn cut(&self, slots: u32) -> Result<(), IoError> {
        let data = self.geometry.data_range(0..slots).end;
        let table = u64::from(slots) * RECORD_BYTES as u64;
        for (file, end) in [(&self.table, table), (&self.data, data)] {
            let len = file.len().map_err(file.failed(FileOp::Stat, 0..0))?;
            if len > end {
                file.set_len(end).map_err(file.failed(FileOp::Resize, end..len))?;
            }
        }
        Ok(())
    }

    pub(super) fn data_range(&self, slots: Range<u32>) -> Range<u64> {
        self.geometry.data_range(slots)
    }
}
