//! `Transfer`: a copy under way.

use dynamo_llm::block_manager::{BlockResult, Transfer as Core};
use pyo3::prelude::*;

use crate::{
    argument::seconds,
    error::{Failure, Kind, chain},
    fork::Guarded,
    wait,
};

/// A copy under way. It ends in its own time; dropping this neither waits nor cancels.
#[pyclass(frozen, module = "dynamo_llm")]
pub(crate) struct Transfer {
    transfer: Guarded<Core>,
}

impl Transfer {
    pub(crate) fn new(transfer: Core) -> Self {
        Self { transfer: Guarded::new(transfer) }
    }
}

/// A block's status as text.
fn status(result: &BlockResult) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => chain(error),
    }
}

#[pymethods]
impl Transfer {
    /// Wait for the end and return a status per block, in order: `"ok"`, or what went wrong.
    #[pyo3(signature = (timeout=None))]
    fn result(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<String>> {
        let timeout = seconds("timeout", timeout)?;
        let transfer = self.transfer.get()?;
        let ended = if transfer.is_over() {
            transfer.wait(None)
        } else {
            wait::until(py, timeout, |slice| transfer.wait(Some(slice)))?
        };
        match ended {
            Some(results) => Ok(results.iter().map(status).collect()),
            None => Err(Failure::new(
                Kind::Timeout,
                format!(
                    "timeout = {}: the copy of {} blocks has not ended; it goes on, wait again or \
                     cancel it",
                    timeout.unwrap_or_default().as_secs_f64(),
                    transfer.len()
                ),
            )
            .into()),
        }
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
