//! One block of a job on a thread of the I/O engine.
#![allow(unsafe_code)]

use std::slice;

use super::{blocks::DiskBlocks, drive::Drive, pass};
use crate::{
    config::Tier,
    eviction::SlotId,
    io::{IoError, Lane, read_full, write_full},
    storage::disk::DiskError,
    sync::{Arc, Mutex, atomic::Ordering},
    transfer::{BlockMemory, BlockPair, BlockPlace, Job, TransferError, sum_block},
};

type Outcome = Result<Box<[u64]>, TransferError>;

/// A block on its way; reported once, when its request is answered.
pub(super) struct Task {
    job: Arc<Job>,
    index: usize,
    outcome: Mutex<Option<Outcome>>,
}

impl Task {
    pub(super) fn new(job: Arc<Job>, index: usize) -> Self {
        Self { job, index, outcome: Mutex::new(None) }
    }

    /// Copies the block. The result is what is said of the drive; the outcome is kept.
    pub(super) fn run(&self) -> Result<(), IoError> {
        let outcome = match self.job.ticket().stopped() {
            Some(reason) => Err(reason),
            None => self.copy(),
        };
        let of_drive = match &outcome {
            Ok(_) => Ok(()),
            Err(TransferError::Disk(DiskError::Io(error))) => Err(error.clone()),
            // It ended before the drive had a say, for good or ill.
            Err(_) => Err(IoError::Cancelled { lane: self.lane() }),
        };
        *self.outcome.lock() = Some(outcome);
        of_drive
    }

    fn lane(&self) -> Lane {
        if self.job.plan().to().disk().is_some() { Lane::Store } else { Lane::Load }
    }

    /// The request was answered.
    pub(super) fn end(&self, answer: Result<(), IoError>) {
        let outcome = match (self.outcome.lock().take(), answer) {
            (Some(outcome), _) => outcome,
            (None, Err(error)) => Err(DiskError::Io(error).into()),
            (None, Ok(())) => Err(TransferError::EngineStopped),
        };
        self.job.report(self.index, outcome);
    }

    fn copy(&self) -> Outcome {
        let plan = self.job.plan();
        let Some(&pair) = plan.pairs().get(self.index) else {
            return Err(TransferError::EngineStopped);
        };
        match (plan.from(), plan.to()) {
            (BlockPlace::Memory(memory), BlockPlace::Disk(disk)) => {
                self.store(memory, disk, pair).map_err(|error| match error {
                    // A reset, or a switch of fingerprints, since its slot was allocated.
                    TransferError::Disk(DiskError::WrongGeneration { .. }) => {
                        TransferError::Stale { tier: Tier::Disk, block_id: pair.to }
                    }
                    error => error,
                })
            }
            (BlockPlace::Disk(disk), BlockPlace::Memory(memory)) => load(disk, memory, pair),
            _ => Err(plan.not_served("disk")),
        }
    }

    fn store(&self, memory: &BlockMemory, disk: &DiskBlocks, pair: BlockPair) -> Outcome {
        let label = self.job.plan().label(pair.to);
        let label = label.ok_or_else(|| self.job.plan().not_served("disk"))?;
        let (drive, to) = at(disk, pair.to)?;
        let open = drive.open().ok_or(TransferError::EngineStopped)?;
        let (directory, file) = open.parts()?;
        let (era, fingerprint) = drive.era_of(directory, label.generation)?;
        let slot = drive.settle(directory, to)?;
        directory.tombstone(&[slot])?;

        let mut staging = drive.store_staging.take().ok_or_else(no_staging)?;
        let block_bytes = drive.block_bytes;
        let (payload, sums_page) = staging.split_at_mut(drive.geometry.padded_payload() as usize);
        let in_place = pass::in_place(memory, pair.from);
        let sums = match (&label.sums, in_place.is_some()) {
            // Summed when they landed: a bit that has changed since shows at the next load.
            (Some(sealed), true) => sealed.clone(),
            // SAFETY: the plan keeps its source from being written until the report; `submit` has
            // checked that the memory is accessible.
            (None, true) => unsafe { sum_block(memory, pair.from) }?,
            (sealed, false) => {
                payload[block_bytes..].fill(0);
                // SAFETY: as above.
                let sums = unsafe { pass::gather(memory, pair.from, payload) }?;
                if sealed.as_ref().is_some_and(|sealed| *sealed != sums) {
                    // The one tier in memory whose blocks are sealed.
                    let (tier, block_id) = (Tier::Host, pair.from);
                    return Err(TransferError::VerificationFailed { tier, block_id });
                }
                sums
            }
        };
        sums_page.fill(0);
        for (place, sum) in sums_page.chunks_exact_mut(8).zip(&sums) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
        let payload = match in_place {
            // SAFETY: `in_place` gives the run of the whole block, which nobody writes until the
            // report.
            Some(start) => unsafe { slice::from_raw_parts(start.cast_const(), block_bytes) },
            None => &*payload,
        };
        drive.written.fetch_add(drive.bytes_per_store(), Ordering::Relaxed);
        write_full(file, &[payload, sums_page], drive.offset(slot)).map_err(DiskError::from)?;
        let record =
            drive.record((&era, fingerprint), &label.registration, label.generation, &sums)?;
        directory.write_records(&[(slot, record)])?;
        Ok(sums)
    }
}

fn load(disk: &DiskBlocks, memory: &BlockMemory, pair: BlockPair) -> Outcome {
    let (drive, from) = at(disk, pair.from)?;
    let open = drive.open().ok_or(TransferError::EngineStopped)?;
    let (_, file) = open.parts()?;
    let slot = drive.slot(from).ok_or(TransferError::EngineStopped)?;
    let offset = drive.offset(slot);
    let block_bytes = drive.block_bytes;
    let sums = if let Some(start) = pass::in_place(memory, pair.to) {
        // SAFETY: `in_place` gives the run of the whole block, and the plan keeps everybody else
        // from touching it until the report; `submit` has checked that the memory is accessible.
        let run = unsafe { slice::from_raw_parts_mut(start, block_bytes) };
        read_full(file, &mut [run], offset).map_err(DiskError::from)?;
        // SAFETY: as above.
        unsafe { sum_block(memory, pair.to) }?
    } else {
        let mut staging = drive.load_staging.take().ok_or_else(no_staging)?;
        let run = &mut staging[..drive.geometry.padded_payload() as usize];
        read_full(file, &mut [&mut *run], offset).map_err(DiskError::from)?;
        // SAFETY: as above.
        unsafe { pass::scatter(memory, pair.to, run) }?
    };
    drive.touch(from);
    Ok(sums)
}

/// The drive of a slot.
fn at(disk: &DiskBlocks, slot: SlotId) -> Result<(&Arc<Drive>, SlotId), TransferError> {
    disk.at(slot).ok_or(TransferError::EngineStopped)
}

/// There is a buffer for each thread.
fn no_staging() -> TransferError {
    TransferError::EngineStopped
}
