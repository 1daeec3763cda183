//! The end of a manager: no more verbs, then what is on its way down, within a time.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use pyo3::{prelude::*, types::PyType};

use crate::{
    asyncio::{Nothing, Operation},
    error::Failure,
    logging,
    shared::Shared,
    wait,
};

/// How long whoever leaves a `with` waits: not at all with an error.
pub(crate) fn patience(exc_type: Option<&Bound<'_, PyType>>) -> Option<Duration> {
    exc_type.map(|_| Duration::ZERO)
}

/// Ends the verbs and waits for what is on its way down; returns how many blocks were not.
pub(crate) fn close(py: Python<'_>, shared: &Shared, timeout: Option<Duration>) -> PyResult<usize> {
    if !shared.close() {
        return Ok(0);
    }
    let manager = &shared.manager;
    let flushed = wait::until(py, Some(timeout_of(shared, timeout)), |slice| {
        let start = Instant::now();
        // Shut down by somebody else, there is nothing to wait for.
        let unfinished = manager.flush_blocking(slice).unwrap_or(0);
        // Early, and still something left: it waits for room that nobody will make.
        (unfinished == 0 || start.elapsed() < slice).then_some(())
    });
    let unfinished = py.detach(|| end(shared));
    flushed?;
    logging::drain(py)?;
    Ok(unfinished)
}

/// [`close`], to await.
pub(crate) fn closing(shared: &Arc<Shared>, timeout: Option<Duration>) -> Operation {
    Operation::watching(closed(shared.clone(), timeout), give_up(shared), None)
}

/// [`closing`] at the end of `async with`, where what is returned would be taken for an answer.
pub(crate) fn leaving(shared: &Arc<Shared>, timeout: Option<Duration>) -> Operation {
    let closed = closed(shared.clone(), timeout);
    let closed = async { closed.await.map(|_| Nothing) };
    Operation::watching(closed, give_up(shared), None)
}

async fn closed(shared: Arc<Shared>, timeout: Option<Duration>) -> Result<usize, Failure> {
    if !shared.close() {
        return Ok(0);
    }
    // Shut down by somebody else, there is nothing to wait for.
    let _ = shared.manager.flush(timeout_of(&shared, timeout)).await;
    Ok(end(&shared))
}

fn give_up(shared: &Arc<Shared>) -> impl FnOnce() + Send + 'static + use<> {
    let shared = shared.clone();
    move || {
        end(&shared);
    }
}

/// Stops what is still on its way; returns how many blocks that were.
fn end(shared: &Shared) -> usize {
    shared.manager.shutdown_blocking(Duration::ZERO).unfinished
}

/// The time given, or one that no copy outlasts.
fn timeout_of(shared: &Shared, timeout: Option<Duration>) -> Duration {
    timeout.unwrap_or_else(|| shared.manager.settings().transfer.deadline())
}
