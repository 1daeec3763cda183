//! A decorator for any volume.
//!
//! Which operations are hit depends on the seed and their running number alone, so that a run of one
//! thread can be repeated.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::thread;
use std::time::Duration;

use super::mix;
use crate::io::{FileOp, IoError, IoFile, IoMode, OpenFile, Volume};
use crate::sync::{
    Arc, Condvar, Mutex,
    atomic::{AtomicU64, Ordering},
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
    /// How long each operation takes in addition.
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
            latency: Duration::ZERO,
        }
    }
}

/// A volume in a bad mood; see the module documentation.
pub struct FaultVolume {
    inner: Arc<dyn Volume>,
    mood: Arc<Mood>,
}

struct Mood {
    faults: Mutex<Faults>,
    operations: AtomicU64,
    injected: AtomicU64,
    stalled: Mutex<bool>,
    resumed: Condvar,
}

enum Fault {
    None,
    Short,
    Tear,
}

impl FaultVolume {
    /// `inner` with `faults`.
    pub fn new(inner: Arc<dyn Volume>, faults: Faults) -> Self {
        let mood = Mood {
            faults: Mutex::new(faults),
            operations: AtomicU64::new(0),
            injected: AtomicU64::new(0),
            stalled: Mutex::new(false),
            resumed: Condvar::new(),
        };
        Self { inner, mood: Arc::new(mood) }
    }

    /// Other faults from the next operation on.
    pub fn set_faults(&self, faults: Faults) {
        *self.mood.faults.lock() = faults;
    }

    /// Reads, writes and syncs do not return until [`resume`](Self::resume): a drive that hangs.
    pub fn stall(&self) {
        *self.mood.stalled.lock() = true;
    }

    /// Lets everything go on.
    pub fn resume(&self) {
        *self.mood.stalled.lock() = false;
        self.mood.resumed.notify_all();
    }

    /// Operations that were hit so far.
    pub fn injected(&self) -> u64 {
        self.mood.injected.load(Ordering::Relaxed)
    }
}

impl Mood {
    /// Waits as it is told to, and decides what becomes of the next operation.
    fn next(&self, op: FileOp) -> io::Result<Fault> {
        let faults = self.faults.lock().clone();
        let mut stalled = self.stalled.lock();
        while *stalled {
            stalled = self.resumed.wait(stalled);
        }
        drop(stalled);
        if faults.only.is_some_and(|only| only != op) {
            return Ok(Fault::None);
        }
        if !faults.latency.is_zero() {
            thread::sleep(faults.latency);
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
            return Ok(Fault::None);
        };
        self.injected.fetch_add(1, Ordering::Relaxed);
        fault
    }
}

impl Volume for FaultVolume {
    fn path(&self) -> &str {
        self.inner.path()
    }

    fn names(&self) -> Result<Vec<String>, IoError> {
        self.inner.names()
    }

    fn open(&self, name: &str, how: OpenFile) -> Result<Arc<dyn IoFile>, IoError> {
        let inner = self.inner.open(name, how)?;
        Ok(Arc::new(FaultFile { inner, mood: self.mood.clone() }))
    }

    fn remove(&self, name: &str) -> Result<(), IoError> {
        self.inner.remove(name)
    }

    fn sync(&self) -> Result<(), IoError> {
        self.inner.sync()
    }
}

#[derive(Debug)]
struct FaultFile {
    inner: Arc<dyn IoFile>,
    mood: Arc<Mood>,
}

impl FaultFile {
    /// Half of `total`, in whole units.
    fn half(&self, total: usize) -> usize {
        let unit = self.inner.mode().alignment() as usize;
        total / 2 / unit * unit
    }
}

impl IoFile for FaultFile {
    fn path(&self) -> &Arc<str> {
        self.inner.path()
    }

    fn mode(&self) -> &IoMode {
        self.inner.mode()
    }

    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let Fault::Short = self.mood.next(FileOp::Read)? else {
            return self.inner.read_at(buffers, offset);
        };
        let mut left = self.half(buffers.iter().map(|buffer| buffer.len()).sum());
        let mut some = Vec::new();
        for buffer in buffers {
            let len = left.min(buffer.len());
            left -= len;
            if len > 0 {
                some.push(IoSliceMut::new(&mut buffer[..len]));
            }
        }
        self.inner.read_at(&mut some, offset)
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let fault = self.mood.next(FileOp::Write)?;
        if let Fault::None = fault {
            return self.inner.write_at(buffers, offset);
        }
        let total = buffers.iter().map(|buffer| buffer.len()).sum();
        let mut left = self.half(total);
        let mut some = Vec::new();
        for buffer in buffers {
            let len = left.min(buffer.len());
            left -= len;
            if len > 0 {
                some.push(IoSlice::new(&buffer[..len]));
            }
        }
        let written = if some.is_empty() { 0 } else { self.inner.write_at(&some, offset)? };
        Ok(if let Fault::Tear = fault { total } else { written })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.mood.next(FileOp::Sync)?;
        self.inner.sync_data()
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        self.inner.allocate(range)
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        self.inner.punch(range)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
}

impl fmt::Debug for FaultVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultVolume").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl fmt::Debug for Mood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mood").field("faults", &*self.faults.lock()).finish_non_exhaustive()
    }
}
