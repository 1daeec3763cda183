//! Reports in the order of the plan, whatever order the copies end in.
//!
//! Parallel copies end out of order; what is published must follow the chain (a block after the
//! one it continues). Each report is kept until all before it have come, then passed on, by one
//! thread at a time and under no lock.

use super::{Reports, TransferError};
use crate::sync::Mutex;

/// Passes reports on in order.
pub(crate) struct InOrder<F> {
    state: Mutex<State>,
    next: F,
}

type Report = Result<Box<[u64]>, TransferError>;

struct State {
    reports: Vec<Option<Report>>,
    passed: usize,
    passing: bool,
}

impl<F: Fn(usize, Report) + Send + Sync> InOrder<F> {
    /// Passes the reports of `blocks` pairs to `next(index, report)`.
    pub(crate) fn new(blocks: usize, next: F) -> Self {
        let reports = (0..blocks).map(|_| None).collect();
        Self { state: Mutex::new(State { reports, passed: 0, passing: false }), next }
    }
}

impl<F: Fn(usize, Report) + Send + Sync> Reports for InOrder<F> {
    fn report(&self, index: usize, report: Report) {
        let mut state = self.state.lock();
        state.reports[index] = Some(report);
        // Whoever is passing takes this one along.
        if std::mem::replace(&mut state.passing, true) {
            return;
        }
        loop {
            let passed = state.passed;
            let Some(report) = state.reports.get_mut(passed).and_then(Option::take) else { break };
            state.passed += 1;
            drop(state);
            (self.next)(passed, report);
            state = self.state.lock();
        }
        state.passing = false;
    }
}
