//! Which slots of the directory are whose.

use super::drive::{Drive, NONE};
use crate::{
    eviction::SlotId,
    io::IoError,
    storage::disk::{DiskDirectory, DiskError, DiskSlot},
    sync::atomic::Ordering,
};

/// Bytes that a data file grows by at most: small beside a drive, large beside a system call.
const STEP_BYTES: u64 = 256 << 20;

/// And at most one of so many parts of the tier: what others have is left to them while it can be.
const STEPS: usize = 16;

/// Slots that no slot of the tier has.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Without a block; taken from the end.
    pub(super) free: Vec<u32>,
    /// With a block that nothing here can read; the oldest last.
    pub(super) foreign: Vec<u32>,
    /// Of other geometries; the oldest block, and behind it what has none, last.
    pub(super) others: Vec<DiskSlot>,
    /// The last try found room for not even one more slot.
    pub(super) scarce: bool,
}

impl Drive {
    /// The directory's slot of a slot, which gets one if it has none.
    pub(super) fn settle(
        &self,
        directory: &DiskDirectory,
        slot: SlotId,
    ) -> Result<DiskSlot, DiskError> {
        if let Some(found) = self.slot(slot) {
            return Ok(found);
        }
        let mut room = self.room.lock();
        let number = self.find(directory, &mut room)?;
        if let Some(place) = self.slots.get(slot as usize) {
            place.store(number, Ordering::Release);
        }
        self.used.store(directory.used(), Ordering::Relaxed);
        Ok(DiskSlot { set: self.set, slot: number })
    }

    fn find(&self, directory: &DiskDirectory, room: &mut Room) -> Result<u32, DiskError> {
        room.free.append(&mut self.returned.lock());
        loop {
            let tried = self.vacant(directory, room);
            let full = match tried {
                Ok(number) => return Ok(number),
                Err(
                    full @ (DiskError::LimitReached { .. }
                    | DiskError::TableFull { .. }
                    | DiskError::Io(IoError::NoSpace { .. })),
                ) => full,
                Err(error) => return Err(error),
            };
            if let Some(number) = room.foreign.pop() {
                return Ok(number);
            }
            if !self.give_up_others(directory, room)? {
                return Err(full);
            }
        }
    }

    /// A slot without a block, old or new.
    fn vacant(&self, directory: &DiskDirectory, room: &mut Room) -> Result<u32, DiskError> {
        if let Some(&number) = room.free.last() {
            // Its room may have been given up.
            directory.take_back(&[DiskSlot { set: self.set, slot: number }])?;
            room.free.pop();
            return Ok(number);
        }
        let wanted = self.slots.iter().filter(|slot| slot.load(Ordering::Relaxed) == NONE).count();
        let part = wanted.min(self.slots.len().div_ceil(STEPS)) as u64;
        let step = part.min(STEP_BYTES / self.geometry.slot_bytes()).max(1);
        let mut step = if room.scarce { 1 } else { u32::try_from(step).unwrap_or(u32::MAX) };
        room.scarce = true;
        loop {
            match directory.grow(self.set, step) {
                Ok(new) => {
                    room.scarce = false;
                    room.free.extend(new.rev());
                    return room.free.pop().ok_or(DiskError::NoSuchSet { set: self.set });
                }
                Err(DiskError::LimitReached { .. } | DiskError::Io(IoError::NoSpace { .. }))
                    if step > 1 =>
                {
                    step /= 2;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives up the oldest blocks of another geometry; `false` when there are none.
    fn give_up_others(
        &self,
        directory: &DiskDirectory,
        room: &mut Room,
    ) -> Result<bool, DiskError> {
        let Some(oldest) = room.others.last().copied() else {
            // A set without blocks still has its files.
            let empty = directory
                .sets()
                .into_iter()
                .find(|(id, ..)| *id != self.set && directory.remove_set(*id).is_ok());
            return Ok(empty.is_some());
        };
        let theirs = directory.sets().into_iter().find(|(id, ..)| *id == oldest.set);
        let bytes = theirs.map_or(1, |(_, geometry, ..)| geometry.slot_bytes());
        let count = self.geometry.slot_bytes().div_ceil(bytes) + 1;
        let mut gone = Vec::new();
        while gone.len() < count as usize
            && let Some(slot) = room.others.pop_if(|slot| slot.set == oldest.set)
        {
            gone.push(slot);
        }
        if !directory.give_up(&gone)? {
            // No holes here: the files go as a whole.
            let (rest, others) =
                std::mem::take(&mut room.others).into_iter().partition(|s| s.set == oldest.set);
            room.others = others;
            let rest: Vec<DiskSlot> = rest;
            directory.tombstone(&rest)?;
        }
        if !room.others.iter().any(|slot| slot.set == oldest.set) {
            directory.remove_set(oldest.set)?;
        }
        Ok(true)
    }
}
