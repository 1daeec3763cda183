//! `Match`: a prefix that was found, held.

use std::sync::{Mutex, PoisonError};

use dynamo_llm::block_manager::{Match as Core, Tier};
use pyo3::{
    prelude::*,
    types::{PyDict, PyType},
};

use crate::{error::Failure, fork::Guarded};

/// The longest prefix that was found, held until it is onboarded, released or dropped.
///
/// Blocks of lower tiers in it are candidates: a hit is what arrives verified.
#[pyclass(frozen, module = "dynamo_llm")]
pub(crate) struct Match {
    found: Guarded<Mutex<Option<Core>>>,
    len: usize,
    asked: usize,
    counts: Vec<(Tier, usize)>,
}

impl Match {
    /// A match over these tiers.
    pub(crate) fn new(found: Core, tiers: impl Iterator<Item = Tier>) -> Self {
        Self {
            len: found.len(),
            asked: found.asked(),
            counts: tiers.map(|tier| (tier, found.count(tier))).collect(),
            found: Guarded::new(Mutex::new(Some(found))),
        }
    }

    /// The blocks; from now on nobody's but the caller's.
    pub(crate) fn take(&self) -> Result<Option<Core>, Failure> {
        Ok(self.found.get()?.lock().unwrap_or_else(PoisonError::into_inner).take())
    }
}

#[pymethods]
impl Match {
    /// Blocks by the fastest tier that has them: `{"device": 3, "host": 5}`.
    #[getter]
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = PyDict::new(py);
        for (tier, count) in &self.counts {
            counts.set_item(tier.name(), count)?;
        }
        Ok(counts)
    }

    /// Blocks that were asked for.
    #[getter]
    fn asked(&self) -> usize {
        self.asked
    }

    /// Let go of the blocks. A second call does nothing.
    fn release(&self) -> Result<(), Failure> {
        drop(self.take()?);
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.len
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Releases. In a forked child nothing happens: the blocks are the parent's.
    fn __exit__(
        &self,
        _exc_type: Option<&Bound<'_, PyType>>,
        _exc_value: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) {
        drop(self.take());
    }

    fn __repr__(&self) -> String {
        let counts: Vec<String> =
            self.counts.iter().map(|(tier, count)| format!("{count} {tier}")).collect();
        let state = match self
            .found
            .get()
            .map(|found| found.lock().unwrap_or_else(PoisonError::into_inner).is_some())
        {
            Ok(true) => "held",
            Ok(false) => "released",
            Err(_) => "of a parent process",
        };
        format!("<Match of {} of {} blocks ({}), {state}>", self.len, self.asked, counts.join(", "))
    }
}
