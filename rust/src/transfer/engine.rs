//! What an engine is, and what it is given.
#![allow(unsafe_code)]

use std::time::Instant;

use super::{TransferError, TransferPlan, shield::shielded};
use crate::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Executes plans.
///
/// `submit` returns at once, whatever the length of the plan. Each pair of an accepted plan is
/// reported exactly once, from any thread, and not before its bytes are in place and visible to
/// whoever learns of the report. Once a job's ticket has stopped, pairs not yet begun are reported
/// with the ticket's reason and not copied; a copy under way ends first. An engine that goes away
/// drops the jobs it has, which reports what it never began as [`TransferError::EngineStopped`].
///
/// # Safety
///
/// The slots of a pair are handed on when it is reported, or when its job is dropped. An engine
/// touches them only before that, reads the source only, and uses no plan (clones included) beyond
/// its job.
pub unsafe trait TransferEngine: Send + Sync {
    /// Its name in errors, logs and metrics.
    fn name(&self) -> &str;

    /// Queues a job.
    ///
    /// # Errors
    /// The job comes back untouched and unreported, with why it cannot be taken now.
    fn submit(&self, job: Job) -> Result<(), (TransferError, Job)>;
}

/// Receives the reports of a job.
pub trait Reports: Send + Sync {
    /// The `index`-th pair of the plan has ended: with the CRC-64/NVME of each of its tiles as they
    /// were copied, or without the copy having been done.
    fn report(&self, index: usize, result: Result<Box<[u64]>, TransferError>);
}

/// A plan on its way through an engine.
pub struct Job {
    plan: TransferPlan,
    ticket: Arc<Ticket>,
    reports: Arc<dyn Reports>,
}

impl Job {
    /// A job for `plan` that reports to `reports` and stops when `ticket` says so.
    pub fn new(plan: TransferPlan, ticket: Arc<Ticket>, reports: Arc<dyn Reports>) -> Self {
        Self { plan, ticket, reports }
    }

    /// What to copy.
    pub fn plan(&self) -> &TransferPlan {
        &self.plan
    }

    /// Whether to go on.
    pub fn ticket(&self) -> &Arc<Ticket> {
        &self.ticket
    }

    /// Reports one pair. A receiver that panics loses this report.
    pub fn report(&self, index: usize, result: Result<Box<[u64]>, TransferError>) {
        shielded("a receiver of reports", || self.reports.report(index, result));
    }

    /// Reports all pairs as failed for the same reason.
    pub fn refuse(&self, error: &TransferError) {
        for index in 0..self.plan.pairs().len() {
            self.report(index, Err(error.clone()));
        }
    }

    /// The parts, for a decorator that sends something else on.
    pub fn into_parts(self) -> (TransferPlan, Arc<Ticket>, Arc<dyn Reports>) {
        (self.plan, self.ticket, self.reports)
    }
}

/// A caller's word that a job is still wanted.
#[derive(Debug, Default)]
pub struct Ticket {
    cancelled: AtomicBool,
    deadline: Option<Instant>,
}

impl Ticket {
    /// A ticket that stops at `deadline`, if there is one, or when it is cancelled.
    pub fn new(deadline: Option<Instant>) -> Self {
        Self { cancelled: AtomicBool::new(false), deadline }
    }

    /// The job is not wanted any more.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    /// When it stops by itself.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Why nothing more should be begun; `None` while the job is wanted.
    pub fn stopped(&self) -> Option<TransferError> {
        if self.cancelled.load(Ordering::Acquire) {
            Some(TransferError::Cancelled)
        } else if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            Some(TransferError::DeadlineExceeded)
        } else {
            None
        }
    }
}
