//! `BlockManager`: tiers, and the verbs over all of them.

use std::{ffi::OsString, sync::Arc, time::Instant};

use dynamo_llm::block_manager::{
    KvBlockManager, OnboardOptions, Tier,
    config::{Config, ConfigError, ConfigLayers},
    offload::{Onboard, Onboarded},
    pool::ImmutableSlots,
};
use pyo3::{
    prelude::*,
    types::{PyDict, PyString, PyType},
};
use serde_json::{Value, json};

use crate::{
    argument::{count, seconds, wrong_type},
    batch::Batch,
    block_list::{BlockList, Selection},
    dtype::DTypeArgument,
    error::Failure,
    fork::Guarded,
    gather::Gathered,
    hashes::{Hashes, HashesArgument},
    json,
    matching::Match,
    pool::{self, BlockPool},
    settings::{self, Extras, Names, number},
    shared::Shared,
    status,
    transfer::Transfer,
    wait::{self, work},
};

/// Blocks in tiers: allocate, register, look up, offload, onboard.
///
/// The device tier is GPU memory; on a machine with no GPU it is ordinary memory, and `status()`
/// says so. Memory is committed when it is first touched, and zero until then.
#[pyclass(frozen, module = "dynamo_llm")]
pub(crate) struct BlockManager {
    shared: Guarded<Arc<Shared>>,
}

impl BlockManager {
    fn build(
        py: Python<'_>,
        settings: Result<Config, ConfigError>,
        names: Names,
        extras: Extras,
    ) -> PyResult<Self> {
        Ok(Self { shared: Guarded::new(settings::build(py, settings, names, extras)?) })
    }

    fn get(&self, tier: Tier) -> Result<Option<BlockPool>, Failure> {
        let shared = self.shared.get()?;
        match shared.open()?.pool(tier) {
            Some(_) => Ok(Some(BlockPool::new(self.shared.share()?, tier))),
            None => Ok(None),
        }
    }

    /// Ends the verbs and waits for what is on its way down; returns how many blocks were not.
    fn end(
        py: Python<'_>,
        shared: &Shared,
        timeout: Option<std::time::Duration>,
    ) -> PyResult<usize> {
        if !shared.close() {
            return Ok(0);
        }
        let manager = &shared.manager;
        // No copy takes longer than that.
        let timeout = timeout.unwrap_or_else(|| manager.settings().transfer.deadline());
        let flushed = wait::until(py, Some(timeout), |slice| {
            let start = Instant::now();
            // Shut down by somebody else, there is nothing to wait for.
            let unfinished = manager.flush_blocking(slice).unwrap_or(0);
            // Early, and still something left: it waits for room that nobody will make.
            (unfinished == 0 || start.elapsed() < slice).then_some(())
        });
        let report = py.detach(|| manager.shutdown_blocking(std::time::Duration::ZERO));
        flushed?;
        Ok(report.unfinished)
    }
}

#[pymethods]
impl BlockManager {
    #[new]
    #[pyo3(signature = (
        num_layers, page_size, inner_dim, dtype=DTypeArgument::DEFAULT, device_id=None, *,
        outer_dim=None, device_blocks=None, host_blocks=None, disk=None, remote=None,
        eviction="lru", offload_policy="write_through", model=None, revision=None, adapter=None,
        worker_id=None, prefault=false, zero_on_allocate=false, strict=false,
    ), text_signature = "(num_layers, page_size, inner_dim, dtype=..., device_id=0, *, \
        outer_dim=2, device_blocks=None, host_blocks=None, disk=None, remote=None, \
        eviction='lru', offload_policy='write_through', model=None, revision=None, adapter=None, \
        worker_id=0, prefault=False, zero_on_allocate=False, strict=False)")]
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
        offload_policy: &str,
        model: Option<&str>,
        revision: Option<&str>,
        adapter: Option<&str>,
        worker_id: Option<&Bound<'_, PyAny>>,
        prefault: bool,
        zero_on_allocate: bool,
        strict: bool,
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
        Self::build(py, settings, Names::Arguments, extras)
    }

    /// Make a manager from a TOML file, or from a dict of the same shape.
    #[classmethod]
    #[pyo3(signature = (config, *, device_id=None, zero_on_allocate=false),
        text_signature = "($cls, config, *, device_id=0, zero_on_allocate=False)")]
    fn from_config(
        _cls: &Bound<'_, PyType>,
        py: Python<'_>,
        config: &Bound<'_, PyAny>,
        device_id: Option<&Bound<'_, PyAny>>,
        zero_on_allocate: bool,
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
        Self::build(py, settings, Names::Settings, extras)
    }

    /// Make a manager from the variables `DYNAMO_LLM_*` and the file that `DYNAMO_LLM_CONFIG` names.
    #[classmethod]
    #[pyo3(signature = (*, device_id=None, zero_on_allocate=false),
        text_signature = "($cls, *, device_id=0, zero_on_allocate=False)")]
    fn from_env(
        _cls: &Bound<'_, PyType>,
        py: Python<'_>,
        device_id: Option<&Bound<'_, PyAny>>,
        zero_on_allocate: bool,
    ) -> PyResult<Self> {
        // Python's own view of the environment: the process's may change under another thread.
        let variables = py.import("os")?.getattr("environ")?.call_method0("items")?;
        let variables: PyResult<Vec<(OsString, OsString)>> =
            variables.try_iter()?.map(|pair| pair?.extract()).collect();
        let settings = Config::from_env(variables?);
        let extras = Extras::new(device_id, zero_on_allocate)?;
        Self::build(py, settings, Names::Settings, extras)
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
        pool::allocate(py, shared, shared.pool(Tier::Device)?, n)
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
        let manager = self.shared.get()?.open()?;
        let hashes = hashes.0;
        let asked = hashes.as_slice().len();
        let found = work(py, asked, || manager.lookup(hashes.as_slice())).map_err(Failure::from)?;
        let on = [Tier::Device, Tier::Host, Tier::Disk, Tier::Remote]
            .into_iter()
            .filter(|&tier| manager.pool(tier).is_some());
        Ok(Match::new(found, on))
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
        let shared = self.shared.get()?;
        let manager = shared.open()?;
        let device = shared.pool(Tier::Device)?;
        let skip = skip.map_or(Ok(0), |skip| count("skip", skip))?;
        let deadline = seconds("deadline", deadline)?;
        let deadline = deadline.and_then(|left| Instant::now().checked_add(left));
        let into = match into {
            None => None,
            Some(into) => Some(Selection::new("into", into)?).filter(|into| into.len() > 0),
        };
        let found = if let Ok(found) = source.cast::<Match>() {
            found.get().take()?.ok_or_else(|| {
                Failure::manager("the match was released or used up; look the hashes up again")
            })?
        } else {
            let hashes: HashesArgument = source.extract()?;
            manager.lookup(hashes.0.as_slice()).map_err(Failure::from)?
        };
        let into = match into {
            None => None,
            Some(into) => Some(Gathered::take(into, device.blocks(), false)?),
        };
        let given = into.as_ref().map_or(0, |into| into.slots.len());
        let (slots, from) = into.map(|into| (into.slots, into.from)).unzip();
        let options = OnboardOptions { skip, into: slots, deadline };
        let onboarded = onboard(py, manager, found, options)?;
        let Onboarded { blocks, unused, .. } = onboarded;
        if let (Some(from), Some(unused)) = (from, unused) {
            from.put_back_after(given - unused.len(), unused);
        }
        let tier = device.blocks().clone();
        let blocks = match blocks {
            Some(blocks) => blocks,
            None => device.match_slots(&[]).map_err(Failure::from)?,
        };
        let hashes = blocks.registrations().into_iter().map(|name| name.key.hash).collect();
        let device_id = shared.device_id(Tier::Device);
        Ok(BlockList::new(Batch::registered(tier, device_id, blocks, Hashes::new(hashes))))
    }

    /// Start copying registered blocks down; the blocks may be released at once.
    #[pyo3(signature = (blocks, to="host"))]
    fn offload(&self, py: Python<'_>, blocks: &Bound<'_, PyAny>, to: &str) -> PyResult<Transfer> {
        let shared = self.shared.get()?;
        let manager = shared.open()?;
        if to != Tier::Host.name() {
            return Err(Failure::argument(format!(
                "to = {to:?}: blocks go down to \"host\" in this version"
            ))
            .into());
        }
        let selection = Selection::new("blocks", blocks)?;
        let device = shared.pool(Tier::Device)?;
        let transfer = work(py, selection.len(), || -> Result<_, Failure> {
            let mut parts = Vec::with_capacity(selection.parts.len());
            for (batch, view) in &selection.parts {
                if view.len() > 0 {
                    parts.push(batch.share(*view)?);
                }
            }
            let foreign = parts.iter().find(|part| !part.belongs_to(device.blocks().pool()));
            if let Some(part) = foreign {
                return Err(Failure::manager(format!(
                    "blocks: some are not in the device tier of this manager but in a {} tier; \
                     only the device tier's blocks are offloaded",
                    part.pool().tier()
                )));
            }
            let slots = match ImmutableSlots::join(parts) {
                Some(slots) => slots,
                None => device.match_slots(&[])?,
            };
            Ok(manager.offload_slots(&slots)?)
        });
        Ok(Transfer::new(transfer?))
    }

    /// Forget every block in every tier; what is still held stays readable, for its holders alone.
    fn reset(&self, py: Python<'_>) -> Result<(), Failure> {
        let manager = self.shared.get()?.open()?;
        py.detach(|| manager.reset_blocking())?;
        Ok(())
    }

    /// What is in force and what was counted: tiers, edges, latencies, settings, findings.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::to_python(py, &status::tree(self.shared.get()?))
    }

    /// The counters as `OpenMetrics` text.
    fn metrics(&self) -> Result<String, Failure> {
        Ok(self.shared.get()?.manager.status().to_openmetrics())
    }

    /// End the verbs, and wait for what is on its way down; returns how many blocks were not there.
    #[pyo3(signature = (timeout=None))]
    fn close(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<usize> {
        let timeout = seconds("timeout", timeout)?;
        Self::end(py, self.shared.get()?, timeout)
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
        // Whoever leaves with an error does not want to wait.
        let timeout = exc_type.map(|_| std::time::Duration::ZERO);
        if let Ok(shared) = self.shared.get() {
            Self::end(py, shared, timeout)?;
        }
        Ok(())
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

/// Brings a match up, and lets other threads and signals through meanwhile.
fn onboard(
    py: Python<'_>,
    manager: &KvBlockManager,
    found: dynamo_llm::block_manager::Match,
    options: OnboardOptions,
) -> PyResult<Onboarded> {
    let started = py.detach(|| manager.start_onboard(found, options)).map_err(Failure::from)?;
    let mut under_way: Option<Onboard> = Some(started);
    let arrived = wait::until(py, None, |slice| match under_way.take()?.wait(Some(slice)) {
        Ok(onboarded) => Some(onboarded),
        Err(still) => {
            under_way = Some(still);
            None
        }
    })?;
    arrived.ok_or_else(|| Failure::manager("the onboarding ended without a result").into())
}
