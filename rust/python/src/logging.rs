//! What the core has to say, for `logging.getLogger("dynamo_llm")`.
//!
//! The core speaks through `tracing`, from any thread, and Python's `logging` takes the interpreter
//! lock and runs anybody's handlers. So events go into a bounded ring, and the next call into the
//! library hands them on, from its own thread; so does closing a manager, and the end of the
//! process. When the ring is full the first events stay, which tell the cause, and the number of
//! those that were dropped is reported.
//!
//! Settings and findings at the start do not go through the ring: who makes a manager logs them.
//!
//! The ring is the subscriber of this extension module alone: each has a copy of `tracing` of its
//! own, so neither another one nor a program that embeds Python sees or loses anything.
//!
//! Costs: a call that finds nothing to hand on has read one flag.

use std::{
    fmt::{self, Write},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use dynamo_llm::block_manager::{
    KvBlockManager, START_TARGET,
    config::{Severity, Source},
};
use pyo3::{exceptions::PyException, prelude::*, sync::PyOnceLock};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};

/// Events that wait for a call. What is logged is rare; this many at once are a storm.
const RING_EVENTS: usize = 256;

/// Whether there may be something in the ring.
static WAITING: AtomicBool = AtomicBool::new(false);

/// Level, message, file, line, seconds since the epoch, name of the thread if it is of the core.
type Record = (u32, String, &'static str, u32, f64, String);

/// The events of one process, and the ring of its forked child, whose parent's may be locked by a
/// thread that the child does not have.
struct Ring {
    process: u32,
    held: Mutex<Held>,
    child: OnceLock<Box<Ring>>,
}

#[derive(Default)]
struct Held {
    records: Vec<Record>,
    dropped: u64,
}

impl Ring {
    fn new() -> Self {
        Self { process: std::process::id(), held: Mutex::default(), child: OnceLock::new() }
    }

    /// The ring of this process.
    fn get() -> &'static Self {
        static FIRST: OnceLock<Ring> = OnceLock::new();
        let (mut ring, process) = (FIRST.get_or_init(Self::new), std::process::id());
        while ring.process != process {
            ring = ring.child.get_or_init(|| Box::new(Self::new()));
        }
        ring
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, record: Record) {
        let mut held = self.lock();
        if held.records.len() < RING_EVENTS {
            held.records.push(record);
        } else {
            held.dropped += 1;
        }
        drop(held);
        WAITING.store(true, Ordering::Release);
    }

    /// Takes all there is.
    fn drain(&self) -> Vec<Record> {
        WAITING.store(false, Ordering::Release);
        let Held { mut records, dropped } = std::mem::take(&mut *self.lock());
        if dropped > 0 {
            let message = format!(
                "{dropped} more events were dropped: {RING_EVENTS} waited for a call into the \
                 library"
            );
            records.push(record(Level::WARN, message, file!(), line!()));
        }
        records
    }
}

/// An event of now and this thread.
fn record(level: Level, message: String, file: &'static str, line: u32) -> Record {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or_default().to_owned();
    (number(level), message, file, line, now.as_secs_f64(), thread)
}

/// The level as `logging` counts.
fn number(level: Level) -> u32 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

/// Puts events of the core into the ring. There are no spans.
struct IntoRing;

impl Subscriber for IntoRing {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && *metadata.level() <= Level::INFO
            && metadata.target().starts_with("dynamo_llm")
            && metadata.target() != START_TARGET
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let metadata = event.metadata();
        let (file, line) = (metadata.file().unwrap_or_default(), metadata.line());
        let message = text.message + &text.fields;
        Ring::get().push(record(*metadata.level(), message, file, line.unwrap_or_default()));
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// `message key=value ...`.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a `String` does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// Adds what `dynamo_llm._log` needs, and begins to listen to the core.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Refused when the module is initialised once more in the process: it listens already.
    let _ = tracing::subscriber::set_global_default(IntoRing);
    module.setattr("_drain_log", wrap_pyfunction!(drain_log, module)?)
}

/// Hand on what is in the ring.
#[pyfunction]
#[pyo3(name = "_drain_log")]
fn drain_log(py: Python<'_>) -> PyResult<()> {
    drain(py)
}

/// Hands on what was said since the last call. Only what is no `Exception` comes through, Ctrl-C
/// for one: a broken handler must not break a verb.
pub(crate) fn drain(py: Python<'_>) -> PyResult<()> {
    if !WAITING.load(Ordering::Acquire) {
        return Ok(());
    }
    let records = Ring::get().drain();
    if records.is_empty() {
        return Ok(());
    }
    unless_broken(py, emit(py).and_then(|emit| emit.call1((records,))))
}

/// Logs what is in force in a new manager and what was decided, once, from the thread that makes it.
pub(crate) fn start(py: Python<'_>, manager: &KvBlockManager) -> PyResult<()> {
    static LOG: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let log = LOG.import(py, "dynamo_llm._log", "start")?;
    let settings = manager.settings().effective().into_iter().map(|setting| {
        let stated = setting.source != Source::Default;
        (number(if stated { Level::INFO } else { Level::DEBUG }), setting.to_string())
    });
    let findings = manager.findings().iter().map(|finding| {
        let level = match finding.severity {
            Severity::Info => Level::INFO,
            Severity::Warning => Level::WARN,
            Severity::Error => Level::ERROR,
        };
        (number(level), finding.to_string())
    });
    let lines: Vec<(u32, String)> = settings.chain(findings).collect();
    unless_broken(py, log.call1((lines,)))
}

fn emit(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static EMIT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    EMIT.import(py, "dynamo_llm._log", "emit")
}

fn unless_broken<T>(py: Python<'_>, result: PyResult<T>) -> PyResult<()> {
    match result {
        Ok(_) => Ok(()),
        Err(error) if error.is_instance_of::<PyException>(py) => {
            error.write_unraisable(py, None);
            Ok(())
        }
        Err(error) => Err(error),
    }
}
