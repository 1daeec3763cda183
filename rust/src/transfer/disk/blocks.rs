//! The slots of a tier that lie on drives.

use std::{
    any::Any,
    fmt,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use super::{
    drive::Drive,
    rendezvous::{Candidate, home},
};
use crate::{
    eviction::SlotId,
    io::Lane,
    layout::BlockLayout,
    seal::{Fingerprint, SealTiling},
    storage::disk::DiskError,
    sync::{Arc, atomic::Ordering},
    tokens::Key,
};

/// The slots of a tier on drives; see the documentation of `transfer::disk`.
///
/// Each drive has a run of them: those of the first come first.
pub struct DiskBlocks {
    pub(super) layout: BlockLayout,
    pub(super) tiling: SealTiling,
    pub(super) drives: Box<[Arc<Drive>]>,
    pub(super) candidates: Box<[Candidate]>,
    /// How long a reset waits for the drives.
    pub(super) patience: Duration,
}

impl DiskBlocks {
    /// Shape and number of the blocks.
    pub fn layout(&self) -> &BlockLayout {
        &self.layout
    }

    /// How each block is cut into tiles.
    pub fn tiling(&self) -> SealTiling {
        self.tiling
    }

    /// The drives, in the order of their slots.
    pub fn drives(&self) -> &[Arc<Drive>] {
        &self.drives
    }

    /// Bytes on all drives, everything included, as of the last slots that were found room.
    pub fn used(&self) -> u64 {
        self.drives.iter().map(|drive| drive.used()).sum()
    }

    /// The drive of a slot, and what the slot is called there.
    pub(super) fn at(&self, slot: SlotId) -> Option<(&Arc<Drive>, SlotId)> {
        let mut local = slot;
        for drive in &self.drives {
            match local.checked_sub(drive.capacity() as SlotId) {
                Some(rest) => local = rest,
                None => return Some((drive, local)),
            }
        }
        None
    }

    /// Bytes that storing a block gives to a drive.
    pub(crate) fn bytes_per_store(&self) -> u64 {
        self.drives.first().map_or(0, |drive| drive.bytes_per_store())
    }

    /// For each key the position of the drive that it is stored on: by rendezvous, weighted by
    /// capacity, among those that take stores now.
    pub(crate) fn homes(&self, keys: &[Key]) -> Vec<usize> {
        if self.drives.len() == 1 {
            return vec![0; keys.len()];
        }
        let takes: Vec<bool> = self.drives.iter().map(|drive| drive.serves(Lane::Store)).collect();
        keys.iter().map(|key| home(&self.candidates, &takes, key)).collect()
    }

    /// Whether loads from any drive can be expected to come back.
    pub(crate) fn serves(&self) -> bool {
        self.drives.iter().any(|drive| drive.serves(Lane::Load))
    }

    /// How many of `slots`, from the first on, lie where loads can be expected to come back.
    pub(crate) fn serving(&self, slots: &[SlotId]) -> usize {
        let out: Vec<bool> = self.drives.iter().map(|drive| !drive.serves(Lane::Load)).collect();
        if !out.contains(&true) {
            return slots.len();
        }
        let is_out = |&slot: &SlotId| {
            let at = self.at(slot).map(|(drive, _)| drive);
            let same = |drive: &Arc<Drive>| at.is_some_and(|at| Arc::ptr_eq(at, drive));
            self.drives.iter().zip(&out).any(|(drive, &out)| out && same(drive))
        };
        slots.iter().position(is_out).unwrap_or(slots.len())
    }

    /// Begins a reset generation on every drive, for which the pool was reset once. No drive is waited
    /// for; until one has noted it, it takes no stores.
    ///
    /// Generations follow the clock of the system, so that of two resets that reached different
    /// drives in different lives the later one has the higher number. Where the clock was set back
    /// they count on.
    pub(crate) fn begin_reset(&self) -> BegunReset {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.ok().and_then(|now| u64::try_from(now.as_micros()).ok()).unwrap_or(0);
        let each = self.drives.iter().map(|drive| (drive.clone(), drive.begin_reset(now)));
        BegunReset { each: each.collect(), until: Instant::now() + self.patience }
    }

    /// Whether some drive has noted every reset so far, so that it takes stores.
    pub(crate) fn knows_of_resets(&self) -> bool {
        self.drives.iter().any(|drive| drive.knows_of_resets())
    }

    /// From now on blocks of another fingerprint are stored and read; those of before stay, invisible.
    /// `number` are the switches so far, for each of which the pool is reset once. No drive is asked:
    /// each has to be [read](Self::read_again) before it takes stores again.
    pub(crate) fn begin_era(&self, number: u64, fingerprint: Fingerprint, label: &Arc<str>) {
        self.drives.iter().for_each(|drive| drive.begin_era(number, fingerprint, label));
    }

    /// Lets go of the directories, so that others can own them as soon as what is under way has
    /// ended. Waits for that until `deadline`; without one, not at all.
    pub(crate) fn close(&self, deadline: Option<Instant>) {
        self.drives.iter().for_each(|drive| drive.close());
        if let Some(deadline) = deadline {
            self.drives.iter().for_each(|drive| drive.wait_released(deadline));
        }
    }

    /// What was loaded from a slot has been verified.
    pub(crate) fn hit(&self, slot: SlotId) {
        if let Some((drive, _)) = self.at(slot) {
            drive.hits.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a slot has room of its own on its drive; where files are sparse that may be less than
    /// it needs.
    pub(crate) fn has_room(&self, slot: SlotId) -> bool {
        self.at(slot).is_some_and(|(drive, slot)| drive.slot(slot).is_some())
    }

    /// Erases the record of a slot, some time soon; `held` is let go of then.
    pub(crate) fn erase(&self, slot: SlotId, held: Box<dyn Any + Send>) {
        if let Some((drive, slot)) = self.at(slot) {
            drive.erase(slot, held);
        }
    }
}

/// A reset that the drives are being told of.
#[must_use]
pub(crate) struct BegunReset {
    each: Vec<(Arc<Drive>, Result<u64, DiskError>)>,
    until: Instant,
}

impl BegunReset {
    /// Waits until blocks of before can never be seen again, and not for ever. One of several drives
    /// that cannot be told catches up with the others at the next start.
    ///
    /// # Errors
    /// What a drive says, where none could be told; a restart may forget the reset then.
    pub(crate) fn noted(self) -> Result<(), DiskError> {
        let (mut told, mut first) = (false, Ok(()));
        for (drive, begun) in self.each {
            let said = begun.and_then(|number| drive.reset_is_told(number, self.until));
            told |= said.is_ok();
            if let Err(error) = said {
                tracing::warn!(dir = %drive.name, %error, "a reset was not noted on the drive");
                first = first.and(Err(error.on(&drive.name)));
            }
        }
        if told { Ok(()) } else { first }
    }
}

impl fmt::Debug for DiskBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskBlocks")
            .field("layout", &self.layout)
            .field("drives", &self.drives)
            .finish_non_exhaustive()
    }
}
