//! One drive of a tier: a directory, who reads and writes it, and which slot lies where.

use std::{any::Any, fmt, time::Instant};

use super::{
    era::{Era, Eras},
    forget::Resets,
    reading::Turns,
    room::Room,
};
use crate::{
    eviction::SlotId,
    io::{Health, IoEngine, IoError, IoFile, IoRequest, IoWork, Lane, Staging},
    pool::Registration,
    seal::Seal,
    storage::disk::{
        DiskDirectory, DiskError, DiskRecord, DiskSlot, EngineName, FingerprintId, Geometry,
        RECORD_BYTES, SetId,
    },
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    tokens::SequenceHash,
};

/// No slot of the directory.
pub(super) const NONE: u32 = u32::MAX;

/// A drive of a tier. Its slots are numbered from 0, whatever the tier calls them.
pub struct Drive {
    /// What people call it: its directory.
    pub(super) name: Arc<str>,
    pub(super) access: Mutex<Access>,
    pub(super) released: Condvar,
    pub(super) set: SetId,
    pub(super) geometry: Geometry,
    /// Bytes of a block.
    pub(super) block_bytes: usize,
    pub(super) eras: Mutex<Eras>,
    pub(super) turns: Mutex<Turns>,
    pub(super) turned: Condvar,
    pub(super) resets: Mutex<Resets>,
    pub(super) reset_told: Condvar,
    pub(super) io: Arc<dyn IoEngine>,
    pub(super) load_staging: Staging,
    pub(super) store_staging: Staging,
    /// The directory's slot of each slot; [`NONE`] until it is first written.
    pub(super) slots: Box<[AtomicU32]>,
    pub(super) room: Mutex<Room>,
    /// Slots of the directory that somebody had no use for: room, for whoever holds that next.
    pub(super) returned: Mutex<Vec<u32>>,
    /// Known without asking the directory, which may be waiting for the drive.
    pub(super) used: AtomicU64,
    /// Uses that are to be noted, with a request under way for them.
    pub(super) touched: Mutex<Vec<(DiskSlot, u64)>>,
    /// Counts uses, across drives and restarts.
    pub(super) uses: Arc<AtomicU64>,
    /// Blocks that were there at opening.
    pub(super) found: usize,
    /// Bytes of blocks that were given to the drive.
    pub(super) written: AtomicU64,
    /// Blocks that were loaded and verified.
    pub(super) hits: AtomicU64,
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
    drive: Arc<Drive>,
    opened: Option<Arc<Opened>>,
}

impl Drive {
    /// What people call it: its directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The most blocks of the tier that lie here.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Blocks that were there when it was opened and can be read.
    pub fn found(&self) -> usize {
        self.found
    }

    /// Bytes on the drive, everything included, as of the last slot that was found room.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that were given to the drive to be written: blocks with their sums and records.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Blocks that were loaded and verified.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Bytes that storing a block gives to the drive.
    pub fn bytes_per_store(&self) -> u64 {
        self.geometry.slot_bytes() + RECORD_BYTES as u64
    }

    /// Whether a lane of the drive can be used.
    pub fn health(&self, lane: Lane) -> Health {
        self.io.health(lane)
    }

    /// Whether what is asked of a lane can be expected to come back: the drive is well, or it is
    /// time to try it again. Stores want the table to have been read and every
    /// reset to be noted, too.
    pub(crate) fn serves(&self, lane: Lane) -> bool {
        if lane == Lane::Store && !(self.is_read() && self.knows_of_resets()) {
            return false;
        }
        match self.io.health(lane) {
            Health::Good => true,
            Health::Sick { probe_at, .. } => probe_at <= Instant::now(),
        }
    }

    /// Lets go of the directory, so that another can own it as soon as what is under way has ended.
    pub(super) fn close(&self) {
        let opened = self.access.lock().opened.take();
        drop(opened);
    }

    /// Waits until nobody is at the directory any more, at most until `deadline`.
    pub(super) fn wait_released(&self, deadline: Instant) {
        let mut access = self.access.lock();
        while access.users > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            access = self.released.wait_timeout(access, left);
        }
    }

    /// Erases the record of a slot, some time soon; `held` is let go of then.
    pub(super) fn erase(self: &Arc<Self>, slot: SlotId, held: Box<dyn Any + Send>) {
        self.later(slot, held, move |directory, place, drive| {
            // By now it may be another's.
            let _nobody_deals = drive.room.lock();
            let still = drive.slot(slot) == Some(place);
            if still { directory.tombstone(&[place]) } else { Ok(()) }
        });
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
        let sent = self.later(slot, Box::new(()), |directory, _, drive| {
            let touched = std::mem::take(&mut *drive.touched.lock());
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
            match call(directory, slot, &open.drive) {
                Err(DiskError::Io(error)) => Err(error),
                said => {
                    if let Err(error) = said {
                        tracing::debug!(%error, "disk books");
                    }
                    // A record goes to the page cache, if anywhere: no sign that the drive is well.
                    Err(IoError::Cancelled { lane: Lane::Store })
                }
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
        Some(Using { drive: self.clone(), opened })
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

    /// What is kept of a block with these sums that is stored in `era`, in a slot that was allocated
    /// in that generation of the pool.
    pub(super) fn record(
        &self,
        (era, fingerprint): (&Era, FingerprintId),
        registration: &Registration,
        of_pool: u64,
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
            fingerprint,
            codec: 0,
            stored_len: self.block_bytes as u64,
            seal_root: *Seal::new(&key.to_bytes(), &era.fingerprint, sums).root().as_bytes(),
            generation: era.generation(of_pool),
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
        self.drive.access.lock().users -= 1;
        self.drive.released.notify_all();
    }
}

impl fmt::Debug for Drive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drive")
            .field("name", &self.name)
            .field("set", &self.set)
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}
