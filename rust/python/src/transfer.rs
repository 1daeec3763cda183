//! `Transfer`: a copy under way.

use std::{sync::Arc, time::Duration};

use dynamo_llm::block_manager::{BlockResult, Transfer as Core};
use pyo3::prelude::*;

use crate::{
    argument::seconds,
    asyncio::{self, Operation},
    error::{Failure, Kind, chain},
    fork::Guarded,
    logging, wait,
};

/// A copy under way. It ends in its own time; dropping this neither waits nor cancels.
#[pyclass(frozen, module = "dynamo_llm")]
pub(crate) struct Transfer {
    transfer: Guarded<Arc<Core>>,
}

impl Transfer {
    pub(crate) fn new(transfer: Core) -> Self {
        Self { transfer: Guarded::new(Arc::new(transfer)) }
    }

    /// An await of the results; given up, it cancels the transfer.
    fn awaited<'py>(
        &self,
        py: Python<'py>,
        verb: &str,
        timeout: Option<Duration>,
    ) -> PyResult<Bound<'py, PyAny>> {
        logging::drain(py)?;
        let transfer = self.transfer.get()?.clone();
        let results = transfer.results();
        let statuses = async move { Ok(statuses(&results.await)) };
        let late = timeout.map(|timeout| late(timeout, &transfer));
        let operation = Operation::watching(statuses, move || transfer.cancel(), late);
        asyncio::start(py, verb, operation, timeout)
    }
}

/// A status as text for each block.
fn statuses(results: &[BlockResult]) -> Vec<String> {
    let status = |result: &BlockResult| match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => chain(error),
    };
    results.iter().map(status).collect()
}

/// The caller's time was up first.
fn late(timeout: Duration, transfer: &Core) -> Failure {
    Failure::new(
        Kind::Timeout,
        format!(
            "timeout = {}: the copy of {} blocks has not ended; it goes on, wait again or cancel it",
            timeout.as_secs_f64(),
            transfer.len()
        ),
    )
}

#[pymethods]
impl Transfer {
    /// Wait for the end and return a status per block, in order: `"ok"`, or what went wrong.
    #[pyo3(signature = (timeout=None))]
    fn result(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<String>> {
        let timeout = seconds("timeout", timeout)?;
        logging::drain(py)?;
        let transfer = self.transfer.get()?;
        let ended = if transfer.is_over() {
            transfer.wait(None)
        } else {
            wait::until(py, timeout, |slice| transfer.wait(Some(slice)))?
        };
        match ended {
            Some(results) => Ok(statuses(&results)),
            None => Err(late(timeout.unwrap_or_default(), transfer).into()),
        }
    }

    /// `result`, to await. Cancelling the await cancels the transfer; `timeout` lets it go on.
    #[pyo3(signature = (timeout=None))]
    fn result_async<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let timeout = seconds("timeout", timeout)?;
        self.awaited(py, "Transfer.result_async", timeout)
    }

    /// Await a status per block; cancelling the await cancels the transfer.
    fn __await__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.awaited(py, "Transfer", None)?.call_method0("__await__")
    }

    /// Whether every block has its status.
    fn done(&self) -> Result<bool, Failure> {
        Ok(self.transfer.get()?.is_over())
    }

    /// Give up what has not arrived. It is over at once; copies under way end in the background.
    fn cancel(&self) -> Result<(), Failure> {
        self.transfer.get()?.cancel();
        Ok(())
    }

    fn __len__(&self) -> Result<usize, Failure> {
        Ok(self.transfer.get()?.len())
    }

    fn __repr__(&self) -> String {
        match self.transfer.get() {
            Ok(transfer) if transfer.is_over() => {
                format!("<Transfer of {} blocks, over>", transfer.len())
            }
            Ok(transfer) => format!("<Transfer of {} blocks, under way>", transfer.len()),
            Err(_) => "<Transfer of a parent process>".to_owned(),
        }
    }
}
