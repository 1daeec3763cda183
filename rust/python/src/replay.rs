//! `replay` and `replay_index`: the work of the command line's `replay`.
//!
//! The replay runs on the calling thread with the interpreter released. About ten times a second it
//! takes the interpreter back to look for signals and to tell the caller's function how far it is;
//! what that raises, or Ctrl-C, ends the replay. No other thread ever sees a Python object.
#![allow(clippy::needless_pass_by_value, reason = "arguments from Python come by value")]

use std::{
    error::Error,
    num::NonZeroU64,
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use dynamo_llm::block_manager::{
    EvictionKind,
    replay::{
        self, ByteReplayOptions, Capacity, IndexReplay, Progress, ReplayCancelled, ReplayError,
        Trace, TraceError, TraceFormat, TraceProblem,
    },
};
use pyo3::{exceptions::PyOSError, prelude::*};
use serde::Serialize;

use crate::{
    error::{Failure, Kind},
    logging,
};

/// Time between two looks at Python.
const INTERVAL: Duration = Duration::from_millis(100);

/// Adds the functions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(replay_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(replay_index, module)?)
}

#[pyfunction]
#[pyo3(
    name = "replay",
    signature = (
        path, *, policy, device_blocks, host_blocks, disk, disk_blocks, restart_every,
        bytes_per_block, verify, limit, format, progress,
    ),
)]
#[allow(clippy::too_many_arguments, reason = "they are the caller's, by name")]
fn replay_bytes(
    py: Python<'_>,
    path: PathBuf,
    policy: &str,
    device_blocks: Option<&str>,
    host_blocks: Option<&str>,
    disk: Option<PathBuf>,
    disk_blocks: Option<&str>,
    restart_every: Option<NonZeroU64>,
    bytes_per_block: u64,
    verify: bool,
    limit: Option<usize>,
    format: Option<&str>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let options = ByteReplayOptions::builder()
        .policy(policy.parse::<EvictionKind>().map_err(config)?)
        .maybe_device_blocks(device_blocks.map(capacity).transpose()?)
        .maybe_host_blocks(host_blocks.map(capacity).transpose()?)
        .maybe_disk(disk)
        .maybe_disk_blocks(disk_blocks.map(capacity).transpose()?)
        .maybe_restart_every(restart_every)
        .bytes_per_block(bytes_per_block)
        .verify(verify)
        .build();
    let format = format.map(trace_format).transpose()?;
    let mut reporter = Reporter::new(progress);
    let replayed = py.detach(|| {
        let trace = open(&path, format, limit)?;
        let result = replay::with_bytes(&trace, &options, |progress| reporter.tell(progress));
        result.map_err(Ended::Replay)
    });
    reporter.finish(replayed)
}

#[pyfunction]
#[pyo3(signature = (path, *, policies, capacities, format, limit, progress))]
fn replay_index(
    py: Python<'_>,
    path: PathBuf,
    policies: Vec<String>,
    capacities: Vec<String>,
    format: Option<&str>,
    limit: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    #[derive(Serialize)]
    struct Points {
        points: Vec<IndexReplay>,
    }

    let policies: Result<Vec<EvictionKind>, _> = policies.iter().map(|name| name.parse()).collect();
    let policies = policies.map_err(config)?;
    let capacities: Vec<_> =
        capacities.iter().map(|text| capacity(text)).collect::<PyResult<_>>()?;
    let format = format.map(trace_format).transpose()?;
    let mut reporter = Reporter::new(progress);
    let replayed = py.detach(|| {
        let trace = open(&path, format, limit)?;
        let unique = trace.unique_blocks();
        let blocks: Vec<u64> = capacities.iter().map(|capacity| capacity.blocks(unique)).collect();
        let points = replay::sweep(&trace, &blocks, &policies, |progress| reporter.tell(progress))
            .map_err(|cancelled: ReplayCancelled| Ended::Replay(cancelled.into()))?;
        Ok(Points { points })
    });
    reporter.finish(replayed)
}

/// What can end the work, before it is an exception.
enum Ended {
    Trace(TraceError),
    Replay(ReplayError),
}

fn open(path: &Path, format: Option<TraceFormat>, limit: Option<usize>) -> Result<Trace, Ended> {
    let trace = Trace::open(path, format).map_err(Ended::Trace)?;
    Ok(match limit {
        Some(requests) => trace.limited(requests),
        None => trace,
    })
}

fn capacity(text: &str) -> PyResult<Capacity> {
    text.parse().map_err(config)
}

fn trace_format(name: &str) -> PyResult<TraceFormat> {
    name.parse().map_err(config)
}

/// The caller's function, and how it ended the replay.
pub(crate) struct Reporter {
    callback: Option<Py<PyAny>>,
    told: Option<Instant>,
    raised: Option<PyErr>,
}

impl Reporter {
    pub(crate) fn new(callback: Option<Py<PyAny>>) -> Self {
        Self { callback, told: None, raised: None }
    }

    /// Called by the replay, on the thread that called us.
    pub(crate) fn tell(&mut self, progress: Progress) -> ControlFlow<()> {
        let Progress { done, total } = progress;
        if done < total && self.told.is_some_and(|told| told.elapsed() < INTERVAL) {
            return ControlFlow::Continue(());
        }
        self.told = Some(Instant::now());
        let told = Python::attach(|py| {
            py.check_signals()?;
            logging::drain(py)?;
            self.callback.as_ref().map(|callback| callback.call1(py, (done, total))).transpose()
        });
        match told {
            Ok(_) => ControlFlow::Continue(()),
            Err(error) => {
                self.raised = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    /// What the caller's function has raised.
    pub(crate) fn raised(self) -> Option<PyErr> {
        self.raised
    }

    /// The result as JSON, or the exception.
    fn finish(self, replayed: Result<impl Serialize, Ended>) -> PyResult<String> {
        match (self.raised, replayed) {
            (Some(raised), _) => Err(raised),
            (None, Ok(result)) => serde_json::to_string(&result).map_err(config),
            (None, Err(ended)) => Err(ended.into()),
        }
    }
}

impl From<Ended> for PyErr {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Trace(TraceError { path, problem: TraceProblem::Io(error), .. }) => {
                let reason = error.to_string();
                let reason = reason.split(" (os error").next().unwrap_or_default().to_owned();
                match error.raw_os_error() {
                    // With the number Python chooses the subclass.
                    Some(number) => PyOSError::new_err((number, reason, path.into_os_string())),
                    None => PyOSError::new_err(format!("{reason}: {}", path.display())),
                }
            }
            Ended::Trace(error) => config(error),
            Ended::Replay(ReplayError::Manager(error)) => Failure::from(error).into(),
            Ended::Replay(ReplayError::Pool(error)) => Failure::from(error).into(),
            Ended::Replay(ReplayError::Block(error)) => Failure::from(error).into(),
            Ended::Replay(error) => config(error),
        }
    }
}

/// An argument or a trace that cannot be used. These messages quote their causes.
fn config(error: impl Error) -> PyErr {
    Failure::new(Kind::Config, error).into()
}
