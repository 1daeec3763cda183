//! The verbs that end in `_async`.
//!
//! A verb reads its arguments and makes an [`Operation`], which is a Rust future: nothing begins
//! before it is polled. `dynamo_llm._aio` makes a coroutine of it, whose first step polls it. The end
//! is told through one eventfd per event loop ([`Bell`]): the thread that ends the operation writes
//! eight bytes, the loop wakes up, and Python code on the loop's own thread resolves futures. So no
//! Rust thread ever knows a future of Python's, a loop or any other Python object.
//!
//! What takes microseconds is done in the first step, on the loop's thread. What takes long and has
//! no future of its own (`reset`, wiping, work on thousands of blocks) gets a thread
//! ([`on_thread`]).
//!
//! Costs: an await of what is over at once takes little longer than its verb; one that waits takes a
//! write and a turn of the loop. No memory stays behind.

mod bell;
mod operation;
mod thread;

use std::time::Duration;

use pyo3::{prelude::*, sync::PyOnceLock};

use bell::Bell;
pub(crate) use operation::{Nothing, Operation};

use crate::{error::Failure, wait};

/// Adds what `dynamo_llm._aio` is made of, which is nobody else's: not in `__all__`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.setattr("_Bell", py.get_type::<Bell>())?;
    module.setattr("_Operation", py.get_type::<Operation>())
}

/// The coroutine that awaits `operation`, under the name of its verb.
pub(crate) fn start<'py>(
    py: Python<'py>,
    verb: &str,
    operation: Operation,
    timeout: Option<Duration>,
) -> PyResult<Bound<'py, PyAny>> {
    static FINISH: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let finish = FINISH.import(py, "dynamo_llm._aio", "finish")?;
    let timeout = timeout.map(|timeout| timeout.as_secs_f64());
    let coroutine = finish.call1((operation, timeout))?;
    // What asyncio shows of a task, and of a coroutine that nobody awaited.
    coroutine.setattr("__name__", verb.rsplit('.').next())?;
    coroutine.setattr("__qualname__", verb)?;
    Ok(coroutine)
}

/// A coroutine that returns `value` and awaits nothing.
pub(crate) fn nothing_but<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static ENTER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    ENTER.import(value.py(), "dynamo_llm._aio", "nothing_but")?.call1((value,))
}

/// Work that takes time with the number of blocks: done here, or on a thread when there are many.
pub(crate) async fn work<T: Send + 'static>(
    blocks: usize,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    if wait::is_brief(blocks) { work() } else { on_thread(work).await }
}

/// Work that takes long, on a thread of its own; once begun it goes on to its end.
pub(crate) async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    thread::run(work)?.await
}
