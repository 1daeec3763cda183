//! `Match`: a prefix that was found, held.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dynamo_llm::block_manager::{Match as Core, Tier};
use pyo3::{
    prelude::*,
    types::{PyDict, PyType},
};

use crate::{error::Failure, fork::Guarded, hashes::Hashes, shared::Shared};

/// What was found, while it is held.
pub(crate) struct Found(Mutex<Option<Core>>);

impl Found {
    fn lock(&self) -> MutexGuard<'_, Option<Core>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks in it.
    pub(crate) fn len(&self) -> usize {
        self.lock().as_ref().map_or(0, Core::len)
    }

    /// The blocks; from now on nobody's but the caller's.
    pub(crate) fn take(&self) -> Option<Core> {
        self.lock().take()
    }
}

/// The longest prefix that was found, held until it is onboarded, released or dropped.
///
/// Blocks of lower tiers in it are candidates: a hit is what arrives verified.
#[pyclass(frozen, module = "dynamo_llm")]
pub(crate) struct Match {
    found: Guarded<Arc<Found>>,
    len: usize,
    asked: usize,
    counts: Vec<(Tier, usize)>,
}

impl Match {
    /// The longest prefix of `hashes`.
    pub(crate) fn find(shared: &Shared, hashes: &Hashes) -> Result<Self, Failure> {
        let manager = shared.open()?;
        let found = manager.lookup(hashes.as_slice())?;
        let tiers = [Tier::Device, Tier::Host, Tier::Disk, Tier::Remote];
        let on = tiers.into_iter().filter(|&tier| manager.pool(tier).is_some());
        Ok(Self {
            len: found.len(),
            asked: found.asked(),
            counts: on.map(|tier| (tier, found.count(tier))).collect(),
            found: Guarded::new(Arc::new(Found(Mutex::new(Some(found))))),
        })
    }

    pub(crate) fn found(&self) -> Result<&Arc<Found>, Failure> {
        self.found.get()
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
        drop(self.found.get()?.take());
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
        drop(self.found.get().map(|found| found.take()));
    }

    fn __repr__(&self) -> String {
        let counts: Vec<String> =
            self.counts.iter().map(|(tier, count)| format!("{count} {tier}")).collect();
        let state = match self.found.get().map(|found| found.lock().is_some()) {
            Ok(true) => "held",
            Ok(false) => "released",
            Err(_) => "of a parent process",
        };
        format!("<Match of {} of {} blocks ({}), {state}>", self.len, self.asked, counts.join(", "))
    }
}
