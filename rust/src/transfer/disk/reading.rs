//! The table of a drive read for the fingerprint that is now in force.
//!
//! Slots of the directory are dealt anew: those with a block that can be read now wait to be found a
//! slot of the tier, all others are room. What a slot of the tier has that is being written, or that
//! is out of use, stays with it: it is never given to another block before the end of that is known.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use super::{
    DiskBlocks, RecoveredSlot,
    answer::Answer,
    drive::{Drive, NONE},
    opening::{found_in, keep_newest},
};
use crate::{
    eviction::SlotId,
    io::IoError,
    storage::disk::{DiskError, FingerprintId, RecoveredBlock},
    sync::{Arc, atomic::Ordering},
};

/// How long a drive whose table could not be read is left alone by whoever only comes by.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether the table of a drive is being read.
#[derive(Debug, Default)]
pub(super) struct Turns {
    taken: bool,
    /// The earliest that it is worth trying again.
    again: Option<Instant>,
}

/// The right to read a drive's table and to act on it: one has it at a time.
#[derive(Debug)]
struct Turn(Arc<Drive>);

/// What was found on a drive. Its blocks are in nobody's hand: unless they are found slots of the
/// tier, the drive stays unread.
#[derive(Debug)]
pub(crate) struct Reading {
    turn: Turn,
    /// Slots of the tier before those of the drive.
    base: SlotId,
    number: u64,
    id: FingerprintId,
    generation: u64,
    blocks: Vec<RecoveredBlock>,
    placed: usize,
}

impl Drive {
    /// The turn to read, once others have had theirs; `None` where that is not by `until`.
    fn turn(self: &Arc<Self>, until: Instant) -> Option<Turn> {
        let mut turns = self.turns.lock();
        while turns.taken {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            turns = self.turned.wait_timeout(turns, left);
        }
        turns.taken = true;
        Some(Turn(self.clone()))
    }

    fn is_being_read(&self) -> bool {
        self.turns.lock().taken
    }

    /// Whether it is unread, and reading it may help.
    fn wants_reading(&self) -> bool {
        let turns = self.turns.lock();
        let due = turns.again.is_none_or(|again| again <= Instant::now());
        due && !turns.taken && !self.is_read()
    }
}

impl Turn {
    /// Reads the table for the era of that number, however long the drive takes; `None` where it has
    /// been read, or that era is past.
    fn read(
        self,
        number: u64,
        base: SlotId,
        set_apart: impl Fn() -> Vec<SlotId>,
    ) -> Result<Option<Reading>, DiskError> {
        let drive = self.0.clone();
        let open = drive.open().ok_or(DiskError::Io(IoError::Stopped))?;
        let (directory, _) = open.parts()?;
        // Nobody takes room while it is dealt.
        let mut room = drive.room.lock();
        let era = drive.era();
        if era.number != number || era.id.is_some() {
            return Ok(None);
        }
        directory.keep_fingerprints(&drive.past_fingerprints());
        let (id, _) = directory.claim_fingerprint(*era.fingerprint.as_bytes(), &era.label)?;
        // Asked before and after: what is being written at either time may not be as it is read.
        let mut apart = set_apart();
        let table = directory.read_again(id)?;
        apart.extend(set_apart());

        let apart: HashSet<usize> = apart
            .into_iter()
            .filter_map(|slot| slot.checked_sub(base))
            .map(|s| s as usize)
            .collect();
        let mut taken = HashSet::new();
        for (slot, place) in drive.slots.iter().enumerate() {
            if apart.contains(&slot) {
                taken.insert(place.load(Ordering::Acquire));
            } else {
                place.store(NONE, Ordering::Release);
            }
        }
        let mine = table.blocks.into_iter().filter(|block| !taken.contains(&block.slot.slot));
        let mut given_up = Vec::new();
        let blocks = keep_newest(mine.collect(), drive.capacity(), &mut given_up);
        let mut foreign = table.foreign;
        foreign.extend(given_up.iter().map(|block| (block.sequence, block.slot.slot)));
        foreign.retain(|(_, slot)| !taken.contains(slot));
        foreign.sort_unstable_by_key(|&(sequence, _)| std::cmp::Reverse(sequence));
        room.foreign = foreign.into_iter().map(|(_, slot)| slot).collect();
        room.free = table.free.into_iter().rev().filter(|slot| !taken.contains(slot)).collect();
        drive.returned.lock().clear();
        drop(room);
        let generation = table.generation;
        Ok(Some(Reading { turn: self, base, number, id, generation, blocks, placed: 0 }))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.turns.lock().taken = false;
        self.0.turned.notify_all();
    }
}

impl Reading {
    fn drive(&self) -> &Arc<Drive> {
        &self.turn.0
    }

    /// Blocks that were found.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The first slot of the tier that is one of the drive.
    pub(crate) fn first_slot(&self) -> SlotId {
        self.base
    }

    /// Whether nothing has been forgotten since, by a reset or a later switch, for whoever took
    /// slots in that generation of the pool.
    pub(crate) fn holds(&self, of_pool: u64) -> bool {
        let era = self.drive().era();
        era.number == self.number && era.generation(of_pool) == self.generation
    }

    /// Gives the blocks slots of the tier, which are the caller's own and of this drive: those used
    /// last, where there are too few. Returns them in the order of storing.
    pub(crate) fn place(&mut self, slots: &[SlotId]) -> Vec<RecoveredSlot> {
        let mut left = Vec::new();
        let blocks = keep_newest(std::mem::take(&mut self.blocks), slots.len(), &mut left);
        let mut returned: Vec<u32> = left.iter().map(|block| block.slot.slot).collect();
        self.placed = blocks.len();
        let drive = self.drive();
        let placed = blocks.iter().zip(slots).map(|(block, &slot)| {
            if let Some(place) = drive.slots.get((slot - self.base) as usize) {
                let former = place.swap(block.slot.slot, Ordering::AcqRel);
                returned.extend((former != NONE).then_some(former));
            }
            found_in(slot, block)
        });
        let placed = placed.collect();
        drive.returned.lock().append(&mut returned);
        placed
    }

    /// The blocks can be found: the drive takes stores again.
    pub(crate) fn finish(self) {
        self.drive().open_era(self.number, self.id, self.placed);
    }
}

impl DiskBlocks {
    /// Whether some drive has been read for the present fingerprint, so that it takes stores.
    pub(crate) fn is_read(&self) -> bool {
        self.drives.iter().any(|drive| drive.is_read())
    }

    /// Whether all drives have.
    pub(crate) fn is_all_read(&self) -> bool {
        self.drives.iter().all(|drive| drive.is_read())
    }

    /// Number of the present era; those of the drives may differ while one begins.
    pub(crate) fn era(&self) -> u64 {
        self.drives.iter().map(|drive| drive.era().number).max().unwrap_or(0)
    }

    /// Blocks that were found in the era of that number, on the drives where it is not past.
    pub(crate) fn found(&self, number: u64) -> usize {
        let eras = self.drives.iter().map(|drive| drive.era());
        eras.filter(|era| era.number == number).map(|era| era.found).sum()
    }

    /// Whether some drive has not, and reading it now may help.
    pub(crate) fn wants_reading(&self) -> bool {
        self.drives.iter().any(|drive| drive.wants_reading())
    }

    /// Reads the tables of the drives that have not been read for the era of that number, all at the
    /// same time; what was found by `until`, and what the first of the others said. Drives where it
    /// is past are not read. `set_apart` are the slots of the tier that are being written or are out
    /// of use.
    pub(crate) fn read_again(
        &self,
        number: u64,
        until: Instant,
        set_apart: impl Fn() -> Vec<SlotId> + Clone + Send + 'static,
    ) -> (Vec<Reading>, Result<(), DiskError>) {
        let mut base = 0;
        let mut due = Vec::new();
        for drive in &self.drives {
            let era = drive.era();
            if era.number == number && era.id.is_none() {
                due.push((drive, base));
            }
            base += drive.capacity() as SlotId;
        }
        // Nobody waits for a drive that somebody else is at before all others have begun.
        due.sort_by_key(|(drive, _)| drive.is_being_read());
        let mut begun = Vec::new();
        for (drive, first) in due {
            let set_apart = set_apart.clone();
            let answer = drive.turn(until).ok_or(DiskError::Unread).and_then(|turn| {
                let read = move || turn.read(number, first, set_apart);
                Answer::of("dynamo-reread", read).map_err(DiskError::Io)
            });
            begun.push((drive, answer));
        }
        let (mut readings, mut first) = (Vec::new(), Ok(()));
        for (drive, answer) in begun {
            // One that is late is dropped as it comes, and the drive is unread as before.
            let said = answer.and_then(|answer| answer.by(until).unwrap_or(Err(DiskError::Unread)));
            match said {
                Ok(reading) => readings.extend(reading),
                Err(error) => {
                    drive.turns.lock().again = Instant::now().checked_add(PAUSE);
                    first = first.and(Err(error.on(&drive.name)));
                }
            }
        }
        (readings, first)
    }
}
