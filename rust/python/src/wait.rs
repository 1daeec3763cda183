//! Work that lets other Python threads run, and waits that end with Ctrl-C.

use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::{dlpack::give_back, logging};

/// Work on at most so many blocks keeps the interpreter lock: it takes microseconds, and to get the
/// lock back can take a whole switch interval, which is thousands of them.
const BRIEF: usize = 4096;

/// How often a wait looks for signals.
const SLICE: Duration = Duration::from_millis(50);

/// Whether work on so many blocks is over before it is worth leaving.
pub(crate) fn is_brief(blocks: usize) -> bool {
    blocks <= BRIEF
}

/// Does `work` that takes time with the number of blocks.
pub(crate) fn work<T: Send>(py: Python<'_>, blocks: usize, work: impl FnOnce() -> T + Send) -> T {
    give_back(py);
    if is_brief(blocks) { work() } else { py.detach(work) }
}

/// Waits until `done` answers, at most `timeout`; `done` is given how long it may block. The first
/// signal whose handler raises ends the wait with that exception.
pub(crate) fn until<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    mut done: impl FnMut(Duration) -> Option<T> + Send,
) -> PyResult<Option<T>> {
    give_back(py);
    let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let slice = left.map_or(SLICE, |left| left.min(SLICE));
        if let Some(result) = py.detach(|| done(slice)) {
            return Ok(Some(result));
        }
        py.check_signals()?;
        logging::drain(py)?;
        if left.is_some_and(|left| left <= slice) {
            return Ok(None);
        }
    }
}
