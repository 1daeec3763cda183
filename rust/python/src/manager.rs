//! `BlockManager`: tiers, and the verbs over all of them.

use std::{ffi::OsString, sync::Arc};

use dynamo_llm::block_manager::{
    Tier,
    config::{Config, ConfigError, ConfigLayers},
    pool::ImmutableSlots,
};
use pyo3::{
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyString, PyType},
};
use serde_json::{Value, json};

use crate::{
    argument::{seconds, wrong_type},
    asyncio::{self, Nothing, Operation},
    block_list::{BlockList, Selection},
    borrow::{GiveBack, Lending},
    closing,
    dlpack::give_back,
    dtype::DTypeArgument,
    error::Failure,
    fork::Guarded,
    hashes::HashesArgument,
    json, logging,
    matching::Match,
    onboard::Wanted,
    pool::{self, BlockPool},
    settings::{self, Extras, Names, number},
    shared::Shared,
    status,
    transfer::Transfer,
    wait::work,
};

/// Blocks in tiers: allocate, register, look up, offload, onboard.
///
/// The device tier is GPU memory; on a machine with no GPU it is ordinary memory, and `status()`
/// says so. Memory is committed when it is first touched, and zero until then.
#[pyclass(frozen, module = "dynamo_llm")]
pub(crate) struct BlockManager {
    shared: Guarded<Arc<Shared>>,
    /// After what keeps lent tensors.
    _lent: GiveBack,
}

impl BlockManager {
    fn build(
        py: Python<'_>,
        settings: Result<Config, ConfigError>,
        names: Names,
        extras: Extras,
        lending: Lending<'_, '_>,
    ) -> PyResult<Self> {
        let shared = settings::build(py, settings, names, extras, lending)?;
        logging::start(py, &shared.manager)?;
        Ok(Self { shared: Guarded::new(shared), _lent: GiveBack })
    }

    fn get(&self, tier: Tier) -> Result<Option<BlockPool>, Failure> {
        let shared = self.shared.get()?;
        match shared.open()?.pool(tier) {
            Some(_) => Ok(Some(BlockPool::new(self.shared.share()?, tier))),
            None => Ok(None),
        }
    }

    /// What it works on, while that is open.
    fn open(&self, py: Python<'_>) -> PyResult<&Arc<Shared>> {
        give_back(py);
        logging::drain(py)?;
        let shared = self.shared.get()?;
        shared.open()?;
        Ok(shared)
    }
}

#[pymethods]
impl BlockManager {
    #[new]
    #[pyo3(signature = (
        num_layers, page_size, inner_dim, dtype=DTypeArgument::DEFAULT, device_id=None, *,
        outer_dim=None, device_blocks=None, host_blocks=None, disk=None, remote=None,
        eviction="lru", offload_policy=None, model=None, revision=None, adapter=None,
        worker_id=None, prefault=false, zero_on_allocate=false, strict=false, device_tensors=None,
        axes=None, memory_order=None,
    ), text_signature = "(num_layers, page_size, inner_dim, dtype=..., device_id=0, *, \
        outer_dim=2, device_blocks=None, host_blocks=None, disk=None, remote=None, \
        eviction='lru', offload_policy='write_through', model=None, revision=None, adapter=None, \
        worker_id=0, prefault=False, zero_on_allocate=False, strict=False, device_tensors=None, \
        axes=None, memory_order=None)")]
    #[expect(clippy::too_many_arguments, reason = "one for each keyword")]
    fn new(
        py: Python<'_>,
        num_layers: &Bound<'_, PyAny>,
        page_size: &Bound<'_, PyAny>,
        inner_dim: &Bound<'_, PyAny>,
        dtype: DTypeArgument,
        device_id: Option<&Bound<'_, PyAny>>,
        outer_dim: Option<&Bound<'_, PyAny>>,
        device_blocks: Option<&Bound<'_, PyAny>>,
        host_blocks: Option<&Bound<'_, PyAny>>,
        disk: Option<&Bound<'_, PyAny>>,
        remote: Option<&Bound<'_, PyAny>>,
        eviction: &str,
        offload_policy: Option<&str>,
        model: Option<&str>,
        revision: Option<&str>,
        adapter: Option<&str>,
        worker_id: Option<&Bound<'_, PyAny>>,
        prefault: bool,
        zero_on_allocate: bool,
        strict: bool,
        device_tensors: Option<&Bound<'_, PyAny>>,
        axes: Option<&Bound<'_, PyAny>>,
        memory_order: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let part = |name: &str, value: Option<&Bound<'_, PyAny>>| match value {
            None => Ok(Value::Null),
            Some(value) => json::from_python(name, value),
        };
        let prefault = if prefault { Value::Bool(true) } else { Value::Null };
        let tree = json!({
            "model": {
                "num_layers": number("num_layers", Some(num_layers))?,
                "page_size": number("page_size", Some(page_size))?,
                "inner_dim": number("inner_dim", Some(inner_dim))?,
                "outer_dim": number("outer_dim", outer_dim)?,
                "dtype": dtype.0.name(),
                "name": model,
                "revision": revision,
                "adapter": adapter,
            },
            "runtime": {"worker_id": number("worker_id", worker_id)?},
            "eviction": eviction,
            "strict": strict,
            "device": {"blocks": number("device_blocks", device_blocks)?, "prefault": prefault},
            "host": {"blocks": number("host_blocks", host_blocks)?, "prefault": prefault},
            "offload": {"policy": offload_policy},
            "disk": part("disk", disk)?,
            "remote": part("remote", remote)?,
        });
        let settings = ConfigLayers::new().arguments(tree).resolve();
        let extras = Extras::new(device_id, zero_on_allocate)?;
        let lending = Lending { device_tensors, axes, memory_order };
        Self::build(py, settings, Names::Arguments, extras, lending)
    }

    /// Make a manager from a TOML file, or from a dict of the same shape.
    #[classmethod]
    #[pyo3(signature = (config, *, device_id=None, zero_on_allocate=false, device_tensors=None,
        axes=None, memory_order=None),
        text_signature = "($cls, config, *, device_id=0, zero_on_allocate=False, \
        device_tensors=None, axes=None, memory_order=None)")]
    #[expect(clippy::too_many_arguments, reason = "one for each keyword")]
    fn from_config(
        _cls: &Bound<'_, PyType>,
        py: Python<'_>,
        config: &Bound<'_, PyAny>,
        device_id: Option<&Bound<'_, PyAny>>,
        zero_on_allocate: bool,
        device_tensors: Option<&Bound<'_, PyAny>>,
        axes: Option<&Bound<'_, PyAny>>,
        memory_order: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let settings = if config.is_instance_of::<PyDict>() {
            Config::from_value(json::from_python("config", config)?)
        } else if config.is_instance_of::<PyString>() || config.hasattr("__fspath__")? {
            let path: std::path::PathBuf = config.extract()?;
            py.detach(|| Config::from_toml_file(path))
        } else {
            return Err(wrong_type("config", config, "the path of a TOML file, or a dict"));
        };
        let extras = Extras::new(device_id, zero_on_allocate)?;
        let lending = Lending { device_tensors, axes, memory_order };
        Self::build(py, settings, Names::Settings, extras, lending)
    }

    /// Make a manager from the variables `DYNAMO_LLM_*` and the file that `DYNAMO_LLM_CONFIG` names.
    #[classmethod]
    #[pyo3(signature = (*, device_id=None, zero_on_allocate=false, device_tensors=None,
        axes=None, memory_order=None),
        text_signature = "($cls, *, device_id=0, zero_on_allocate=False, \
        device_tensors=None, axes=None, memory_order=None)")]
    fn from_env(
        _cls: &Bound<'_, PyType>,
        py: Python<'_>,
        device_id: Option<&Bound<'_, PyAny>>,
        zero_on_allocate: bool,
        device_tensors: Option<&Bound<'_, PyAny>>,
        axes: Option<&Bound<'_, PyAny>>,
        memory_order: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        // Python's own view of the environment: the process's may change under another thread.
        let variables = py.import("os")?.getattr("environ")?.call_method0("items")?;
        let variables: PyResult<Vec<(OsString, OsString)>> =
            variables.try_iter()?.map(|pair| pair?.extract()).collect();
        let settings = Config::from_env(variables?);
        let extras = Extras::new(device_id, zero_on_allocate)?;
        let lending = Lending { device_tensors, axes, memory_order };
        Self::build(py, settings, Names::Settings, extras, lending)
    }

    /// Tokens of one block: the `page_size` given.
    #[getter]
    fn block_size(&self) -> Result<usize, Failure> {
        Ok(self.shared.get()?.manager.block_size())
    }

    /// What was decided or noticed at the start, each with field, value, message and remedy.
    #[getter]
    fn findings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::to_python(py, &json!(self.shared.get()?.manager.findings()))
    }

    /// Take `n` writable blocks of the device tier; see `BlockPool.allocate_blocks`.
    fn allocate_blocks(&self, py: Python<'_>, n: &Bound<'_, PyAny>) -> PyResult<BlockList> {
        let shared = self.shared.get()?;
        pool::allocate(py, shared, Tier::Device, n)
    }

    /// `allocate_blocks`, to await; wiping many blocks takes place on another thread.
    fn allocate_blocks_async<'py>(
        &self,
        py: Python<'py>,
        n: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let verb = "BlockManager.allocate_blocks_async";
        pool::allocate_async(py, verb, self.shared.get()?, Tier::Device, n)
    }

    /// The device tier; `None` where it is off.
    fn get_device_pool(&self) -> Result<Option<BlockPool>, Failure> {
        self.get(Tier::Device)
    }

    /// The host tier; `None` where it is off.
    fn get_host_pool(&self) -> Result<Option<BlockPool>, Failure> {
        self.get(Tier::Host)
    }

    /// The disk tier; `None` where it is off.
    fn get_disk_pool(&self) -> Result<Option<BlockPool>, Failure> {
        self.get(Tier::Disk)
    }

    /// Find and hold the longest prefix of `hashes` over all tiers; perhaps nothing.
    fn lookup(&self, py: Python<'_>, hashes: HashesArgument) -> PyResult<Match> {
        let (shared, hashes) = (self.open(py)?, hashes.0);
        Ok(work(py, hashes.as_slice().len(), || Match::find(shared, &hashes))?)
    }

    /// `lookup`, to await.
    fn lookup_async<'py>(
        &self,
        py: Python<'py>,
        hashes: HashesArgument,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (shared, hashes) = (self.open(py)?.clone(), hashes.0);
        let asked = hashes.as_slice().len();
        let found = asyncio::work(asked, move || Match::find(&shared, &hashes));
        asyncio::start(py, "BlockManager.lookup_async", Operation::new(found), None)
    }

    /// Bring a prefix up to the device tier, verified, and return what arrived.
    #[pyo3(signature = (source, *, skip=None, into=None, deadline=None),
        text_signature = "($self, source, *, skip=0, into=None, deadline=None)")]
    fn onboard(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        skip: Option<&Bound<'_, PyAny>>,
        into: Option<&Bound<'_, PyAny>>,
        deadline: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<BlockList> {
        Wanted::new(self.open(py)?, source, skip, into, deadline)?.bring(py)
    }

    /// `onboard`, to await. Cancelling the await gives up what has not arrived.
    #[pyo3(signature = (source, *, skip=None, into=None, deadline=None),
        text_signature = "($self, source, *, skip=0, into=None, deadline=None)")]
    fn onboard_async<'py>(
        &self,
        py: Python<'py>,
        source: &Bound<'py, PyAny>,
        skip: Option<&Bound<'py, PyAny>>,
        into: Option<&Bound<'py, PyAny>>,
        deadline: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let wanted = Wanted::new(self.open(py)?, source, skip, into, deadline)?;
        let operation = Operation::new(wanted.bring_async());
        asyncio::start(py, "BlockManager.onboard_async", operation, None)
    }

    /// Start copying registered blocks down; the blocks may be released at once.
    #[pyo3(signature = (blocks, to="host"))]
    fn offload(&self, py: Python<'_>, blocks: &Bound<'_, PyAny>, to: &str) -> PyResult<Transfer> {
        let shared = self.open(py)?;
        let manager = &shared.manager;
        let tiers = [Tier::Host, Tier::Disk];
        let Some(to) = tiers.into_iter().find(|tier| tier.name() == to) else {
            return Err(Failure::argument(format!(
                "to = {:?}: blocks go down to \"host\" or \"disk\" in this version",
                to.chars().take(80).collect::<String>()
            ))
            .into());
        };
        let selection = Selection::new("blocks", blocks)?;
        let transfer = work(py, selection.len(), || -> Result<_, Failure> {
            let mut parts = Vec::with_capacity(selection.parts.len());
            for (batch, view) in &selection.parts {
                if view.len() > 0 {
                    parts.push(batch.share(*view)?);
                }
            }
            let first = parts.first().map(|part| part.pool().clone());
            let foreign = |part: &&ImmutableSlots| {
                first.as_ref().is_some_and(|first| !part.belongs_to(first))
            };
            if let Some(part) = parts.iter().find(foreign) {
                return Err(Failure::manager(format!(
                    "blocks: some are in another pool than the others, a {} tier's; offload the \
                     blocks of each tier by themselves",
                    part.pool().tier()
                )));
            }
            Ok(match ImmutableSlots::join(parts) {
                Some(slots) => manager.offload_slots_to(&slots, to)?,
                None => manager.offload_to(&[], to)?,
            })
        });
        Ok(Transfer::new(transfer?))
    }

    /// Forget every block in every tier; what is still held stays readable, for its holders alone.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.open(py)?;
        Ok(py.detach(|| reset(shared))?)
    }

    /// `reset`, to await. Once it has begun it is completed.
    fn reset_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.open(py)?.clone();
        let reset = asyncio::on_thread(move || reset(&shared).map(|()| Nothing));
        asyncio::start(py, "BlockManager.reset_async", Operation::new(reset), None)
    }

    /// Say that the engine computes with other weights from now on.
    ///
    /// Returns how many of their blocks were found on disk.
    fn set_weights_version(&self, py: Python<'_>, version: &str) -> PyResult<usize> {
        let shared = self.open(py)?;
        Ok(py.detach(|| set_weights_version(shared, version))?)
    }

    /// `set_weights_version`, to await. Once it has begun it is completed.
    fn set_weights_version_async<'py>(
        &self,
        py: Python<'py>,
        version: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.open(py)?.clone();
        let switch = asyncio::on_thread(move || set_weights_version(&shared, &version));
        let verb = "BlockManager.set_weights_version_async";
        asyncio::start(py, verb, Operation::new(switch), None)
    }

    /// What is in force and what was counted: tiers, edges, latencies, settings, findings.
    ///
    /// A dict; printed, its figures are tables.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static STATUS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        logging::drain(py)?;
        let shared = self.shared.get()?;
        let figures = shared.manager.status();
        let tree = json::to_python(py, &status::tree(shared, &figures))?;
        STATUS.import(py, "dynamo_llm._status", "Status")?.call1((tree, figures.to_string()))
    }

    /// The counters as `OpenMetrics` text.
    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        logging::drain(py)?;
        Ok(self.shared.get()?.manager.status().to_openmetrics())
    }

    /// End the verbs, and wait for what is on its way down; returns how many blocks were not there.
    #[pyo3(signature = (timeout=None))]
    fn close(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<usize> {
        let timeout = seconds("timeout", timeout)?;
        closing::close(py, self.shared.get()?, timeout)
    }

    /// `close`, to await. Cancelling the await closes at once.
    #[pyo3(signature = (timeout=None))]
    fn close_async<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let timeout = seconds("timeout", timeout)?;
        let operation = closing::closing(self.shared.get()?, timeout);
        asyncio::start(py, "BlockManager.close_async", operation, None)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Closes. In a forked child nothing happens: the manager is the parent's.
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: Option<&Bound<'_, PyType>>,
        _exc_value: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let timeout = closing::patience(exc_type);
        if let Ok(shared) = self.shared.get() {
            closing::close(py, shared, timeout)?;
        }
        Ok(())
    }

    /// The manager itself, for `async with`.
    fn __aenter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        asyncio::nothing_but(slf.as_any())
    }

    /// Closes without blocking the event loop, otherwise as `__exit__`.
    fn __aexit__<'py>(
        &self,
        py: Python<'py>,
        exc_type: Option<&Bound<'py, PyType>>,
        _exc_value: Option<&Bound<'py, PyAny>>,
        _traceback: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let timeout = closing::patience(exc_type);
        let Ok(shared) = self.shared.get() else {
            return asyncio::nothing_but(&py.None().into_bound(py));
        };
        let operation = closing::leaving(shared, timeout);
        asyncio::start(py, "BlockManager.__aexit__", operation, None)
    }

    fn __repr__(&self) -> String {
        let Ok(shared) = self.shared.get() else {
            return "<BlockManager of a parent process>".to_owned();
        };
        let manager = &shared.manager;
        let tiers: Vec<String> = [Tier::Device, Tier::Host, Tier::Disk, Tier::Remote]
            .into_iter()
            .filter_map(|tier| {
                let pool = manager.pool(tier)?;
                let (available, total) = (pool.available_blocks(), pool.total_blocks());
                Some(format!("{tier} {available}/{total} available"))
            })
            .collect();
        let closed = if shared.is_closed() { ", closed" } else { "" };
        format!("<BlockManager: {}{closed}>", tiers.join(", "))
    }
}

fn reset(shared: &Shared) -> Result<(), Failure> {
    shared.manager.reset_blocking()?;
    Ok(())
}

fn set_weights_version(shared: &Shared, version: &str) -> Result<usize, Failure> {
    Ok(shared.manager.set_weights_version_blocking(version)?.found)
}
