//! Reports in the order of the plan, whatever order the copies end in.
//!
//! Parallel copies end out of order; what is published must follow the chain (a block after the
//! one it continues). Each report is kept until all before it have come, then passed on together
//! with its row, by one thread at a time and under no lock.
//!
//! Rows own what the copy uses: a row leaves with its report and not before. One whose report never
//! comes, because the engine let go of the job, leaves as [`TransferError::EngineStopped`].

use std::collections::VecDeque;

use super::{Reports, TransferError, shield::shielded};
use crate::sync::Mutex;

/// What an engine says of one pair.
pub(crate) type Report = Result<Box<[u64]>, TransferError>;

/// Passes rows on in order, each with its report.
pub(crate) struct InOrder<T, F: Fn(T, Report)> {
    state: Mutex<State<T>>,
    next: F,
}

struct State<T> {
    /// Rows that have not been passed on.
    rows: VecDeque<(T, Option<Report>)>,
    /// Index of the first of them.
    passed: usize,
    passing: bool,
}

impl<T, F: Fn(T, Report)> InOrder<T, F> {
    /// Passes each of `rows`, one for each pair of a plan, to `next` when its turn has come.
    pub(crate) fn new(rows: impl IntoIterator<Item = T>, next: F) -> Self {
        let rows = rows.into_iter().map(|row| (row, None)).collect();
        Self { state: Mutex::new(State { rows, passed: 0, passing: false }), next }
    }

    /// Takes all rows back: the engine refused the job.
    pub(crate) fn withdraw(&self) -> Vec<T> {
        let rows = std::mem::take(&mut self.state.lock().rows);
        rows.into_iter().map(|(row, _)| row).collect()
    }

    fn pass(&self, row: T, report: Report) {
        shielded("the landing of a block", || (self.next)(row, report));
    }
}

impl<T> State<T> {
    fn next(&mut self) -> Option<(T, Report)> {
        self.rows.front()?.1.as_ref()?;
        let (row, report) = self.rows.pop_front()?;
        self.passed += 1;
        Some((row, report?))
    }
}

impl<T: Send, F: Fn(T, Report) + Send + Sync> Reports for InOrder<T, F> {
    fn report(&self, index: usize, report: Report) {
        let mut state = self.state.lock();
        let position = index.checked_sub(state.passed);
        // The first report of a pair counts; a pair that is not there has no row.
        match position.and_then(|position| state.rows.get_mut(position)) {
            Some((_, none @ None)) => *none = Some(report),
            _ => return,
        }
        // Whoever is passing takes this one along.
        if std::mem::replace(&mut state.passing, true) {
            return;
        }
        while let Some((row, report)) = state.next() {
            drop(state);
            self.pass(row, report);
            state = self.state.lock();
        }
        state.passing = false;
    }
}

impl<T, F: Fn(T, Report)> Drop for InOrder<T, F> {
    fn drop(&mut self) {
        let rows = std::mem::take(&mut self.state.lock().rows);
        for (row, report) in rows {
            self.pass(row, report.unwrap_or(Err(TransferError::EngineStopped)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_leave_in_order_each_once_and_all_in_the_end() {
        let passed = Mutex::new(Vec::new());
        let reports = InOrder::new(0..4, |row: usize, report: Report| {
            passed.lock().push((row, report.is_ok()));
        });
        let good = || Ok(Box::default());
        reports.report(1, good());
        assert!(passed.lock().is_empty());
        reports.report(0, good());
        reports.report(0, Err(TransferError::Cancelled));
        reports.report(9, good());
        assert_eq!(*passed.lock(), [(0, true), (1, true)]);
        reports.report(3, good());
        drop(reports);
        assert_eq!(*passed.lock(), [(0, true), (1, true), (2, false), (3, true)]);
    }

    #[test]
    fn a_receiver_that_panics_loses_that_row_only() {
        let passed = Mutex::new(0);
        let reports = InOrder::new(0..2, |row: usize, _: Report| {
            assert!(row > 0, "the first one panics");
            *passed.lock() += 1;
        });
        reports.report(0, Ok(Box::default()));
        reports.report(1, Ok(Box::default()));
        assert_eq!(*passed.lock(), 1);
    }
}
