//! What goes wrong with a [`FaultVolume`](super::FaultVolume), and when.
//!
//! Which operations are hit depends on the seed and their running number alone, so that a run of one
//! thread can be repeated.

use std::fmt;
use std::io;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use super::mix;
use crate::io::FileOp;
use crate::sync::{
    Arc, Condvar, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// What goes wrong, and how often. Reads, writes and syncs are hit.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    /// Decides which operations are hit.
    pub seed: u64,
    /// The one operation that is hit; `None`: all.
    pub only: Option<FileOp>,
    /// Share of operations that fail, 0 to 1.
    pub errors: f64,
    /// The code of the system that they fail with.
    pub code: i32,
    /// Share of transfers that move only a part and say so, 0 to 1.
    pub shorts: f64,
    /// Share of writes of which only a part lands although all is said to, 0 to 1.
    pub tears: f64,
    /// Share of operations that do not go on until [`resume`](super::FaultVolume::resume) is called,
    /// 0 to 1.
    pub hangs: f64,
    /// Share of operations that take `latency` longer, 0 to 1.
    pub delays: f64,
    /// How much longer they take.
    pub latency: Duration,
}

impl Faults {
    /// No faults; set the fields that should be otherwise.
    pub fn none(seed: u64) -> Self {
        Self {
            seed,
            only: None,
            errors: 0.0,
            code: libc::EIO,
            shorts: 0.0,
            tears: 0.0,
            hangs: 0.0,
            delays: 1.0,
            latency: Duration::ZERO,
        }
    }
}

/// The state that a volume and its files share.
pub(super) struct Mood {
    pub(super) faults: Mutex<Faults>,
    operations: AtomicU64,
    /// How often each was asked of each file.
    counts: Mutex<Vec<(Arc<str>, FileOp, u64)>>,
    pub(super) injected: AtomicU64,
    gate: Mutex<Gate>,
    resumed: Condvar,
    /// Sectors that cannot be read.
    bad: Mutex<Vec<Bad>>,
    pub(super) no_allocate: AtomicBool,
    pub(super) no_punch: AtomicBool,
}

#[derive(Default)]
struct Gate {
    stalled: bool,
    /// How often it was opened.
    resumes: u64,
    hanging: usize,
}

struct Bad {
    path: Arc<str>,
    range: Range<u64>,
    heals: bool,
}

/// What becomes of an operation that goes on.
pub(super) enum Fault {
    None,
    Short,
    Tear,
}

impl Mood {
    pub(super) fn new(faults: Faults) -> Self {
        Self {
            faults: Mutex::new(faults),
            operations: AtomicU64::new(0),
            counts: Mutex::default(),
            injected: AtomicU64::new(0),
            gate: Mutex::default(),
            resumed: Condvar::new(),
            bad: Mutex::default(),
            no_allocate: AtomicBool::new(false),
            no_punch: AtomicBool::new(false),
        }
    }

    pub(super) fn stall(&self) {
        self.gate.lock().stalled = true;
    }

    pub(super) fn resume(&self) {
        let mut gate = self.gate.lock();
        gate.stalled = false;
        gate.resumes += 1;
        drop(gate);
        self.resumed.notify_all();
    }

    pub(super) fn hanging(&self) -> usize {
        self.gate.lock().hanging
    }

    /// Waits as long as the drive is stalled, and with `hangs` until it is resumed in any case.
    pub(super) fn pass(&self, hangs: bool) {
        let mut gate = self.gate.lock();
        let resumes = gate.resumes;
        while gate.stalled || (hangs && gate.resumes == resumes) {
            gate.hanging += 1;
            gate = self.resumed.wait(gate);
            gate.hanging -= 1;
        }
    }

    fn note(&self, path: &Arc<str>, op: FileOp) {
        let mut counts = self.counts.lock();
        match counts.iter_mut().find(|(file, of, _)| file == path && *of == op) {
            Some((.., count)) => *count += 1,
            None => counts.push((path.clone(), op, 1)),
        }
    }

    pub(super) fn count(&self, path: &str, op: FileOp) -> u64 {
        let counts = self.counts.lock();
        let found = counts.iter().find(|(file, of, _)| **file == *path && *of == op);
        found.map_or(0, |(.., count)| *count)
    }

    /// Waits as it is told to, and decides what becomes of the next operation.
    pub(super) fn next(&self, path: &Arc<str>, op: FileOp) -> io::Result<Fault> {
        self.note(path, op);
        let faults = self.faults.lock().clone();
        if faults.only.is_some_and(|only| only != op) {
            self.pass(false);
            return Ok(Fault::None);
        }
        let mut random = mix(faults.seed ^ mix(self.operations.fetch_add(1, Ordering::Relaxed)));
        let mut hit = |share: f64| {
            random = mix(random);
            (random >> 11) as f64 / ((1_u64 << 53) as f64) < share
        };
        let fault = if hit(faults.errors) {
            Err(io::Error::from_raw_os_error(faults.code))
        } else if op != FileOp::Sync && hit(faults.shorts) {
            Ok(Fault::Short)
        } else if op == FileOp::Write && hit(faults.tears) {
            Ok(Fault::Tear)
        } else {
            Ok(Fault::None)
        };
        let hangs = hit(faults.hangs);
        if hangs || !matches!(fault, Ok(Fault::None)) {
            self.injected.fetch_add(1, Ordering::Relaxed);
        }
        self.pass(hangs);
        if !faults.latency.is_zero() && hit(faults.delays) {
            thread::sleep(faults.latency);
        }
        fault
    }

    pub(super) fn damage(&self, path: Arc<str>, range: Range<u64>, heals: bool) {
        self.bad.lock().push(Bad { path, range, heals });
    }

    /// Whether a range can be read.
    pub(super) fn read(&self, path: &str, range: Range<u64>) -> io::Result<()> {
        let touches = |bad: &Bad| {
            &*bad.path == path && bad.range.start < range.end && range.start < bad.range.end
        };
        if self.bad.lock().iter().any(touches) {
            self.injected.fetch_add(1, Ordering::Relaxed);
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(())
    }

    /// A range is being written: what heals and lies in it is well again.
    pub(super) fn written(&self, path: &str, range: &Range<u64>) {
        let healed = |bad: &Bad| {
            bad.heals
                && &*bad.path == path
                && range.start <= bad.range.start
                && bad.range.end <= range.end
        };
        self.bad.lock().retain(|bad| !healed(bad));
    }
}

impl fmt::Debug for Mood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mood").field("faults", &*self.faults.lock()).finish_non_exhaustive()
    }
}
