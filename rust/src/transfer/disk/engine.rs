//! The engine between memory and drives.
#![allow(unsafe_code)]

use super::task::Task;
use crate::{
    io::{IoError, IoRequest, IoWork, Lane},
    storage::disk::DiskError,
    sync::Arc,
    transfer::{BlockPlace, Job, TransferEngine, TransferError},
};

/// Copies blocks to and from drives, on the threads of their I/O engines.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskEngine;

// SAFETY: a block is touched by the one call that its request runs, and reported when that request
// is answered, which the I/O engine does once and not before the call has ended.
unsafe impl TransferEngine for DiskEngine {
    fn name(&self) -> &'static str {
        "disk"
    }

    fn submit(&self, job: Job) -> Result<(), (TransferError, Job)> {
        let plan = job.plan();
        let (disk, memory, lane) = match (plan.from(), plan.to()) {
            (BlockPlace::Memory(memory), BlockPlace::Disk(disk)) => (disk, memory, Lane::Store),
            (BlockPlace::Disk(disk), BlockPlace::Memory(memory)) => (disk, memory, Lane::Load),
            _ => return Err((plan.not_served(self.name()), job)),
        };
        if let Err(error) = memory.check_accessible() {
            return Err((error.into(), job));
        }
        let disk = disk.clone();
        let deadline = job.ticket().deadline();
        let job = Arc::new(job);
        for (index, pair) in job.plan().pairs().iter().enumerate() {
            let label = job.plan().label(pair.to).filter(|_| lane == Lane::Store);
            if let Some(key) = label.map(|label| label.registration.key.hash)
                && key.is_64_bit()
            {
                job.report(index, Err(TransferError::Refused { key }));
                continue;
            }
            let task = Arc::new(Task::new(job.clone(), index));
            let run = task.clone();
            let request = IoRequest {
                lane,
                work: IoWork::Call(Box::new(move || run.run())),
                deadline,
                done: Box::new(move |done| task.end(done.result)),
            };
            let slot = if lane == Lane::Store { pair.to } else { pair.from };
            let sent = match disk.at(slot) {
                Some((drive, _)) => drive.io.submit(request),
                None => Err((IoError::Stopped, Box::new(request))),
            };
            if let Err((error, request)) = sent {
                drop(request);
                job.report(index, Err(DiskError::Io(error).into()));
            }
        }
        Ok(())
    }
}
