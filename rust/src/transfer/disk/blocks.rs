//! The slots of a tier that lie on a drive.

use std::{
    any::Any,
    fmt, thread,
    time::{Duration, Instant},
};

use super::room::Room;
use crate::{
    eviction::SlotId,
    io::{Health, IoEngine, IoError, IoFile, IoRequest, IoWork, Lane, Staging},
    layout::BlockLayout,
    pool::Registration,
    seal::{Fingerprint, Seal, SealTiling},
    storage::disk::{
        DiskDirectory, DiskError, DiskRecord, DiskSlot, EngineName, FingerprintId, Geometry, SetId,
    },
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    tokens::SequenceHash,
};

/// How long a reset waits for the drive.
const RESET_DEADLINE: Duration = Duration::from_secs(10);

/// No slot of the directory.
pub(super) const NONE: u32 = u32::MAX;

/// The slots of a tier on a drive; see the documentation of `transfer::disk`.
pub struct DiskBlocks {
    pub(super) access: Mutex<Access>,
    pub(super) released: Condvar,
    pub(super) set: SetId,
    pub(super) geometry: Geometry,
    pub(super) layout: BlockLayout,
    pub(super) tiling: SealTiling,
    pub(super) fingerprint: Fingerprint,
    pub(super) fingerprint_id: FingerprintId,
    pub(super) io: Arc<dyn IoEngine>,
    pub(super) load_staging: Staging,
    pub(super) store_staging: Staging,
    /// The directory's slot of each slot; [`NONE`] until it is first written.
    pub(super) slots: Box<[AtomicU32]>,
    pub(super) room: Mutex<Room>,
    /// Known without asking the directory, which may be waiting for the drive.
    pub(super) used: AtomicU64,
    /// Uses that are to be noted, with a request under way for them.
    pub(super) touched: Mutex<Vec<(DiskSlot, u64)>>,
    /// Counts uses, across restarts.
    pub(super) uses: AtomicU64,
    /// Reset generation of the directory when its pool was made.
    pub(super) first_generation: u64,
}

/// The directory, and who is at it.
#[derive(Debug)]
pub(super) struct Access {
    /// `None` when closed.
    pub(super) opened: Option<Arc<Opened>>,
    pub(super) users: usize,
}

/// What keeps the directory ours.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) directory: DiskDirectory,
    pub(super) file: Arc<dyn IoFile>,
}

/// The directory while somebody is at it.
pub(super) struct Using {
    disk: Arc<DiskBlocks>,
    opened: Option<Arc<Opened>>,
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

    /// What decides how the bytes are read.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// Bytes on the drive, everything included, as of the last slot that was found room.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether a lane of the drive can be used.
    pub fn health(&self, lane: Lane) -> Health {
        self.io.health(lane)
    }

    /// Whether loads can be expected to come back: the drive is well, or it is time to try it
    /// again.
    pub(crate) fn serves(&self) -> bool {
        match self.io.health(Lane::Load) {
            Health::Good => true,
            Health::Sick { probe_at, .. } => probe_at <= Instant::now(),
        }
    }

    /// Starts a reset generation: blocks of before are never seen again, once this has returned.
    /// Does not wait for a hung drive for ever.
    ///
    /// # Errors
    /// Whatever the drive says; the reset may then be forgotten by a restart.
    pub(crate) fn reset(self: &Arc<Self>) -> Result<(), DiskError> {
        let Some(open) = self.open() else { return Ok(()) };
        let answer = Arc::new((Mutex::new(None), Condvar::new()));
        let told = answer.clone();
        thread::Builder::new()
            .name("dynamo-reset".to_owned())
            .spawn(move || {
                let reset = open.parts().and_then(|(directory, _)| directory.next_generation());
                drop(open);
                *told.0.lock() = Some(reset.map(drop));
                told.1.notify_all();
            })
            .map_err(|error| IoError::Thread { reason: error.to_string() })?;
        let until = Instant::now() + RESET_DEADLINE;
        let mut reset = answer.0.lock();
        loop {
            if let Some(result) = reset.take() {
                return result;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(IoError::Expired { lane: Lane::Store }.into());
            }
            reset = answer.1.wait_timeout(reset, left);
        }
    }

    /// Lets go of the directory, so that another can own it as soon as what is under way has ended.
    /// Waits for that until `deadline`; without one, not at all.
    pub(crate) fn close(&self, deadline: Option<Instant>) {
        let mut access = self.access.lock();
        let opened = access.opened.take();
        if let Some(deadline) = deadline {
            while access.users > 0 {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                access = self.released.wait_timeout(access, left);
            }
        }
        drop(access);
        drop(opened);
    }

    /// Erases the record of a slot, some time soon; `held` is let go of then.
    pub(crate) fn erase(self: &Arc<Self>, slot: SlotId, held: Box<dyn Any + Send>) {
        self.later(slot, held, |directory, slot, _| directory.tombstone(&[slot]));
    }

    /// Notes that the block in a slot is used now, some time soon, with all others noted by then.
    pub(super) fn touch(self: &Arc<Self>, slot: SlotId) {
        let Some(place) = self.slot(slot) else { return };
        let waiting = {
            let mut touched = self.touched.lock();
            touched.push((place, self.next_use()));
            // Now and then once more, should a request have been given up unheard.
            touched.len() % 1024 != 1
        };
        if waiting {
            return;
        }
        let sent = self.later(slot, Box::new(()), |directory, _, disk| {
            let touched = std::mem::take(&mut *disk.touched.lock());
            directory.touch(&touched)
        });
        if !sent {
            self.touched.lock().clear();
        }
    }

    /// Runs `call` on the store lane; whether it will. What becomes of it changes nothing.
    fn later(
        self: &Arc<Self>,
        slot: SlotId,
        held: Box<dyn Any + Send>,
        call: impl FnOnce(&DiskDirectory, DiskSlot, &Self) -> Result<(), DiskError> + Send + 'static,
    ) -> bool {
        let (Some(slot), Some(open)) = (self.slot(slot), self.open()) else { return false };
        let call = move || {
            let (directory, _) = open.parts().map_err(|_| IoError::Stopped)?;
            match call(directory, slot, &open.disk) {
                Err(DiskError::Io(error)) => Err(error),
                Err(error) => {
                    tracing::debug!(%error, "disk books");
                    Ok(())
                }
                Ok(()) => Ok(()),
            }
        };
        let request = IoRequest {
            lane: Lane::Store,
            work: IoWork::Call(Box::new(call)),
            deadline: None,
            done: Box::new(move |_| drop(held)),
        };
        let refused = self.io.submit(request).err();
        if let Some((error, _)) = &refused {
            tracing::debug!(%error, "disk books");
        }
        refused.is_none()
    }

    /// The directory, to be used; `None` when it is closed.
    pub(super) fn open(self: &Arc<Self>) -> Option<Using> {
        let mut access = self.access.lock();
        let opened = Some(access.opened.clone()?);
        access.users += 1;
        Some(Using { disk: self.clone(), opened })
    }

    /// The directory's slot of a slot, if it has one.
    pub(super) fn slot(&self, slot: SlotId) -> Option<DiskSlot> {
        let number = self.slots.get(slot as usize)?.load(Ordering::Acquire);
        (number != NONE).then_some(DiskSlot { set: self.set, slot: number })
    }

    /// First byte of a slot in the data file.
    pub(super) fn offset(&self, slot: DiskSlot) -> u64 {
        u64::from(slot.slot) * self.geometry.slot_bytes()
    }

    pub(super) fn next_use(&self) -> u64 {
        self.uses.fetch_add(1, Ordering::Relaxed)
    }

    /// What is kept of a block with these sums.
    pub(super) fn record(
        &self,
        registration: &Registration,
        generation: u64,
        sums: &[u64],
    ) -> Result<DiskRecord, DiskError> {
        let Registration { key, parent, engine_key } = *registration;
        let engine = engine_key.as_ref().map_or(&[][..], |engine| engine.as_bytes());
        Ok(DiskRecord {
            key: key.hash.as_bytes(),
            group: key.group,
            engine: EngineName::new(engine)?,
            parent: parent.map(SequenceHash::as_bytes),
            depth: u32::from(parent.is_some()),
            fingerprint: self.fingerprint_id,
            codec: 0,
            stored_len: self.layout.block_bytes() as u64,
            seal_root: *Seal::new(&key.to_bytes(), &self.fingerprint, sums).root().as_bytes(),
            generation: self.first_generation + generation,
            last_use: self.next_use(),
        })
    }
}

impl Using {
    /// Directory and data file.
    ///
    /// # Errors
    /// Never while it lives.
    pub(super) fn parts(&self) -> Result<(&DiskDirectory, &dyn IoFile), DiskError> {
        let opened = self.opened.as_ref().ok_or(DiskError::Io(IoError::Stopped))?;
        Ok((&opened.directory, &*opened.file))
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        // Before anybody is told that it is free.
        self.opened = None;
        self.disk.access.lock().users -= 1;
        self.disk.released.notify_all();
    }
}

impl fmt::Debug for DiskBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskBlocks")
            .field("set", &self.set)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}
