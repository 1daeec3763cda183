//! Blocks of another fingerprint found again on the drives of a tier.
//!
//! A tier that switches forgets its blocks in memory at once; what its drives hold under the new
//! fingerprint is read afterwards, without anybody being kept from anything but storing there. A
//! reset or another switch in between is noticed when slots for the blocks are taken: from then on
//! the slots' own generation tells.

use std::{
    cmp::Reverse,
    iter::repeat_n,
    thread,
    time::{Duration, Instant},
};

use super::TierBlocks;
use crate::{
    pool::{ImmutableSlots, MutableSlots, PoolError},
    storage::disk::DiskError,
    sync::Arc,
    transfer::disk::{Reading, RecoveredSlot},
};

/// How long a reading that nobody waits for waits for a drive.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long drives that have been read wait for the others: tables of six million blocks take as
/// long. A table that takes longer is read twice.
const SOON: Duration = Duration::from_secs(2);

impl TierBlocks {
    /// Whether blocks can be stored here: the drives are read. Where some are not, that is begun.
    pub(super) fn takes_stores(self: &Arc<Self>) -> bool {
        let Some(disk) = self.disk() else { return true };
        if disk.wants_reading() {
            let tier = self.clone();
            let read = move || {
                if let Err(error) = tier.read_again(Instant::now() + PATIENCE) {
                    tracing::debug!(%error, "disk");
                }
                // Nobody else knows whose turn was too early.
                tier.reopened();
            };
            // Without a thread now, the next store tries again.
            let _ = thread::Builder::new().name("dynamo-reread".to_owned()).spawn(read);
        }
        disk.is_read()
    }

    /// Reads the drives that have not been read for the present fingerprint, which may become a former
    /// one meanwhile; returns how many of its blocks were found, 0 where all had been read. Waits
    /// until `until` at most.
    ///
    /// # Errors
    /// What the first of the drives says of which that is not known; the others are read.
    pub(crate) fn read_again(&self, until: Instant) -> Result<usize, DiskError> {
        let Some(disk) = self.disk() else { return Ok(0) };
        let era = disk.era();
        if disk.is_all_read() {
            return Ok(0);
        }
        // Drives that answer soon are not kept from use by one that does not.
        let mut by = until.min(Instant::now() + SOON);
        loop {
            let pool = self.pool().clone();
            let (readings, said) = disk.read_again(era, by, move || pool.set_apart());
            let all = readings.is_empty();
            self.adopt(readings);
            match said {
                Ok(()) => {}
                Err(_) if by < until => {
                    by = until;
                    continue;
                }
                Err(error) => return Err(error),
            }
            // What was overtaken by a reset is read again.
            if all {
                return Ok(disk.found(era));
            }
        }
    }

    /// Registers what was found.
    fn adopt(&self, readings: Vec<Reading>) {
        let (mut blocks, mut adopted) = (Vec::new(), Vec::new());
        for mut reading in readings {
            let slots = self.slots_of(&reading);
            if reading.holds(slots.generation()) {
                let placed = reading.place(slots.ids());
                blocks.extend(slots.into_singles().zip(placed));
                adopted.push(reading);
            }
        }
        // So that what a block continues comes before it.
        blocks.sort_by_key(|(_, block)| block.sequence);
        let (slots, found): (Vec<_>, Vec<_>) = blocks.into_iter().unzip();
        if let Some(slots) = MutableSlots::join(slots)
            && let Err(error) = self.register_found(slots, &found)
        {
            // By a reset, or by the next switch, a moment ago: as if it had come a moment later.
            tracing::debug!(%error, "found blocks were forgotten");
        }
        adopted.into_iter().for_each(Reading::finish);
    }

    /// Slots for the blocks of a drive, as many as there are.
    fn slots_of(&self, reading: &Reading) -> MutableSlots {
        let section = self.pool().section_of(reading.first_slot());
        let wanted: Vec<usize> = repeat_n(section, reading.len()).flatten().collect();
        let slots = self.pool().allocate_in(&wanted).into_iter().flatten();
        MutableSlots::join(slots).unwrap_or_else(|| self.pool().allocate_up_to(0))
    }

    /// Registers blocks that were found on a drive, in slots that stand for them there: inactive,
    /// those used longest ago the first to go. Each is a candidate until a load has verified it.
    ///
    /// # Errors
    /// [`PoolError`], where the slots are not what they were taken for.
    pub(super) fn register_found(
        &self,
        slots: MutableSlots,
        found: &[RecoveredSlot],
    ) -> Result<(), PoolError> {
        for (block, &slot) in found.iter().zip(slots.ids()) {
            self.put_root(slot, block.root);
        }
        let registrations: Vec<_> = found.iter().map(|block| block.registration).collect();
        let blocks = self.pool().register(slots, &registrations).map_err(|(error, _)| error)?;
        let mut blocks: Vec<_> = blocks.into_singles().zip(found).collect();
        // One release of all, the last first: what was used longest ago, suffixes before prefixes.
        blocks.sort_by_key(|(_, block)| Reverse(block.last_use));
        drop(ImmutableSlots::join(blocks.into_iter().map(|(block, _)| block)));
        Ok(())
    }
}
