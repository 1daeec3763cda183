//! Copies from slots of one tier into slots of another.
//!
//! The one place where handles become a plan. A [`Row`] owns both sides of a copy and leaves only
//! with its report, so nothing under a copy can be written, freed or given to somebody else,
//! whatever the caller does meanwhile.
#![allow(unsafe_code)]
#![allow(clippy::result_large_err, reason = "a refusal hands the rows back")]

use super::TierBlocks;
use crate::{
    pool::{ImmutableSlots, MutableSlots, PoolError},
    sync::Arc,
    transfer::{
        BlockLabel, BlockPair, InOrder, Job, Report, Ticket, TransferEngine, TransferError,
        TransferPlan,
    },
};

/// The way from one tier to another, and who copies.
pub(super) struct Lane {
    pub(super) from: Arc<TierBlocks>,
    pub(super) to: Arc<TierBlocks>,
    pub(super) engine: Arc<dyn TransferEngine>,
}

/// One block on its way.
pub(super) struct Row<T> {
    /// The block that is read.
    pub(super) source: ImmutableSlots,
    /// The slot that is written.
    pub(super) target: MutableSlots,
    /// What the caller needs when the copy has ended.
    pub(super) errand: T,
}

impl Lane {
    /// Resets of either tier so far. What was told of a copy that began under another number says
    /// nothing about now.
    pub(super) fn resets(&self) -> u64 {
        self.from.pool().generation() + self.to.pool().generation()
    }

    /// Whether `block` is of the tier that is read.
    ///
    /// # Errors
    /// [`PoolError::ForeignHandle`].
    pub(super) fn check_source(&self, block: &ImmutableSlots) -> Result<(), PoolError> {
        self.from.check_owner(block)
    }

    /// Sends copies on their way. `land` gets each row with its report, in order, exactly once.
    ///
    /// # Errors
    /// The rows come back, with why the engine takes none of them.
    pub(super) fn send<T: Send + 'static>(
        &self,
        rows: Vec<Row<T>>,
        ticket: &Arc<Ticket>,
        land: impl Fn(Row<T>, Report) + Send + Sync + 'static,
    ) -> Result<(), (TransferError, Vec<Row<T>>)> {
        if rows.is_empty() {
            return Ok(());
        }
        for row in &rows {
            let sides = [
                (&self.from, self.check_source(&row.source)),
                (&self.to, self.to.check_target(&row.target)),
            ];
            if let Some((tier, _)) = sides.iter().find(|(_, own)| own.is_err()) {
                return Err((TransferError::Foreign { tier: tier.tier() }, rows));
            }
        }
        let pairs = rows
            .iter()
            .filter_map(|row| {
                let (&from, &to) = (row.source.ids().first()?, row.target.ids().first()?);
                Some(BlockPair { from, to })
            })
            .collect();
        // SAFETY: the handles in `rows` own these slots, the sources shared and read-only, the
        // targets alone and so each in one row only. `reports` keeps every row until its report
        // or until the job is dropped.
        let plan =
            unsafe { TransferPlan::new(self.from.place().clone(), self.to.place().clone(), pairs) };
        let mut plan = match plan {
            Ok(plan) => plan,
            Err(error) => return Err((error.into(), rows)),
        };
        if self.to.disk().is_some() {
            plan = plan.labelled(rows.iter().map(|row| {
                let (slot, registration) = (row.source.ids()[0], row.source.registrations()[0]);
                let sums = self.from.sealed_sums(slot, registration.key);
                BlockLabel { registration, generation: row.target.generation(), sums }
            }));
        }
        let tiles = self.from.tiling().tiles();
        let engine = self.engine.name().to_owned();
        let land = move |row, report: Report| {
            let report = report.and_then(|sums| match sums.len() {
                found if found == tiles => Ok(sums),
                found => {
                    let engine = engine.clone();
                    Err(TransferError::WrongSums { engine, found, expected: tiles })
                }
            });
            land(row, report);
        };
        let reports = Arc::new(InOrder::new(rows, land));
        let job = Job::new(plan, ticket.clone(), reports.clone());
        self.engine.submit(job).map_err(|(error, job)| {
            drop(job);
            (error, reports.withdraw())
        })
    }
}
