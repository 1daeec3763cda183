//! Taking room for slots, and giving it back, under the limit.

use std::ops::Range;

use super::directory::{DiskDirectory, Head};
use super::geometry::{DiskSlot, SetId};
use super::record::{RECORD_BYTES, hole};
use super::report::DiskFinding;
use super::set;
use super::{DiskError, Preallocation, room};

impl DiskDirectory {
    /// Adds `slots` to a set; returns their numbers. They are free.
    ///
    /// # Errors
    ///
    /// [`DiskError::LimitReached`], and [`IoError::NoSpace`](crate::io::IoError::NoSpace) where the
    /// drive is full; the set is then as it was.
    pub fn grow(&self, id: SetId, slots: u32) -> Result<Range<u32>, DiskError> {
        let mut head = self.head.lock();
        let set = head.set(id)?.clone();
        let start = set.slots();
        let end = start.checked_add(slots).filter(|&end| end < u32::MAX);
        let end = end.ok_or(DiskError::TableFull { what: "slot", limit: u32::MAX as usize - 1 })?;
        let wanted = u64::from(slots) * (set.geometry.slot_bytes() + RECORD_BYTES as u64);
        self.fits(&head, wanted)?;
        let table = u64::from(start) * RECORD_BYTES as u64..u64::from(end) * RECORD_BYTES as u64;
        let how = self.options.preallocation;
        let taken = room::take(&*set.data, set.data_range(start..end), how)
            .and_then(|sparse| Ok(room::take(&*set.table, table, how)? | sparse));
        let sparse = taken.inspect_err(|_| {
            // What was half taken is given back; where even that fails the next open does it.
            let _ = set.cut(start);
        })?;
        set.marks.lock().grow(end);
        set.set_slots(end);
        if sparse && how == Preallocation::Auto {
            head.find(DiskFinding::Sparse);
        }
        Ok(start..end)
    }

    /// Erases records and gives the room of their slots back; true where the file system can. Where
    /// it cannot the slots are free, and their room stays counted.
    ///
    /// # Errors
    ///
    /// Whatever the drive says; the slots are then free, or still to be erased.
    pub fn give_up(&self, slots: &[DiskSlot]) -> Result<bool, DiskError> {
        self.tombstone(slots)?;
        for set in self.touched(slots.iter().copied())? {
            let mut mine: Vec<u32> =
                slots.iter().filter(|slot| slot.set == set.id).map(|slot| slot.slot).collect();
            mine.sort_unstable();
            let mut marks = set.marks.lock();
            mine.dedup();
            if let Some(&slot) = mine.iter().find(|&&slot| marks.has_block(slot)) {
                return Err(DiskError::SlotInUse { slot: set.slot(slot) });
            }
            for run in mine.chunk_by(|a, b| a + 1 == *b) {
                let range = set.data_range(run[0]..run[run.len() - 1] + 1);
                if !room::give_back(&*set.data, range)? {
                    drop(marks);
                    self.head.lock().find(DiskFinding::NoPunching);
                    return Ok(false);
                }
                for &slot in run {
                    set.put(slot, &hole(set.slot(slot)))?;
                    marks.set_hole(slot);
                }
            }
        }
        Ok(true)
    }

    /// The slots of a set whose room was given up, ascending.
    ///
    /// # Errors
    ///
    /// [`DiskError::NoSuchSet`].
    pub(crate) fn given_up(&self, id: SetId) -> Result<Vec<u32>, DiskError> {
        let set = self.head.lock().set(id)?.clone();
        let marks = set.marks.lock();
        Ok((0..marks.len()).filter(|&slot| marks.is_hole(slot)).collect())
    }

    /// Takes the room of slots that were given up again; they are free then.
    ///
    /// # Errors
    ///
    /// [`DiskError::LimitReached`], and [`IoError::NoSpace`](crate::io::IoError::NoSpace) where the
    /// drive is full.
    pub fn take_back(&self, slots: &[DiskSlot]) -> Result<(), DiskError> {
        let head = self.head.lock();
        for slot in slots {
            let set = head.set(slot.set)?;
            set.check(slot.slot)?;
            if !set.marks.lock().is_hole(slot.slot) {
                continue;
            }
            self.fits(&head, set.geometry.slot_bytes())?;
            let range = set.data_range(slot.slot..slot.slot + 1);
            room::take(&*set.data, range, self.options.preallocation)?;
            let mut marks = set.marks.lock();
            set.erase(slot.slot)?;
            marks.set_free(slot.slot);
        }
        Ok(())
    }

    /// Removes the files of a set that has no blocks and is not the current one.
    ///
    /// # Errors
    ///
    /// [`DiskError::SetInUse`], and whatever the drive says.
    pub fn remove_set(&self, id: SetId) -> Result<(), DiskError> {
        let mut head = self.head.lock();
        let set = head.set(id)?;
        if id == self.current || set.marks.lock().fingerprints().next().is_some() {
            return Err(DiskError::SetInUse { set: id });
        }
        head.superblock.sets.retain(|(set, _)| *set != id);
        head.sets.retain(|set| set.id != id);
        self.write_head(&mut head)?;
        for name in set::names(id) {
            self.volume.remove(&name)?;
        }
        Ok(())
    }

    fn fits(&self, head: &Head, wanted: u64) -> Result<(), DiskError> {
        let (used, limit) = (head.used(), self.options.bytes);
        if used.checked_add(wanted).is_some_and(|sum| sum <= limit) {
            return Ok(());
        }
        Err(DiskError::LimitReached { wanted, used, limit })
    }
}
