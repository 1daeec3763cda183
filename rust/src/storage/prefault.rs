//! Committing a mapping on several threads.
//!
//! The threads take steps from one counter, so a slow one holds up nobody. The caller's thread
//! works too and is the only one that reports, between two of its own steps: no lock is held while
//! a callback runs.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::thread;

use rustix::io::Errno;

use super::StorageError;
use super::mapping::Mapping;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes that one thread commits between two looks at the rest: long enough that the system call
/// does not count, short enough (10 to 60 ms) for a progress bar and a prompt stop.
const STEP: usize = 16 << 20;

/// Commits all of `mapping`; see `SystemStorage::prefault`.
pub(super) fn run(
    mapping: &Mapping,
    threads: usize,
    mut progress: impl FnMut(usize) -> ControlFlow<()>,
) -> Result<usize, StorageError> {
    let Some(threads) = NonZeroUsize::new(threads) else {
        return Err(StorageError::InvalidConfig {
            field: "threads",
            value: "0".to_owned(),
            remedy: "give at least 1, or skip the prefault",
        });
    };
    let job = Job {
        mapping,
        next: AtomicUsize::new(0),
        committed: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        failure: Mutex::new(None),
    };
    let helpers = threads.get().min(mapping.len().div_ceil(STEP)) - 1;
    thread::scope(|scope| {
        for _ in 0..helpers {
            // A thread that cannot be had is one helper less: the caller's works in any case.
            let _ = thread::Builder::new()
                .name("dynamo-prefault".to_owned())
                .spawn_scoped(scope, || while job.step() {});
        }
        while job.step() {
            if progress(job.committed()).is_break() {
                job.stop.store(true, Ordering::Relaxed);
            }
        }
    });
    let committed = job.committed();
    if let Some(errno) = *job.failure.lock() {
        return Err(StorageError::OperationFailed {
            operation: "committing memory",
            reason: format!("{errno}, after {committed} of {} bytes", mapping.len()),
            remedy: "make the tier smaller, or leave its memory to be committed at first touch",
        });
    }
    // What the helpers finished after the caller's last step; too late to stop anything.
    let _ = progress(committed);
    Ok(committed)
}

/// A prefault under way, shared by its threads.
struct Job<'a> {
    mapping: &'a Mapping,
    /// First byte that nobody has taken yet.
    next: AtomicUsize,
    committed: AtomicUsize,
    stop: AtomicBool,
    failure: Mutex<Option<Errno>>,
}

impl Job<'_> {
    fn committed(&self) -> usize {
        self.committed.load(Ordering::Relaxed)
    }

    /// Commits the next step; whether there may be another.
    fn step(&self) -> bool {
        let len = self.mapping.len();
        if self.stop.load(Ordering::Relaxed) {
            return false;
        }
        let start = self.next.fetch_add(STEP, Ordering::Relaxed);
        if start >= len {
            return false;
        }
        let end = len.min(start + STEP);
        let outcome = loop {
            match self.mapping.populate(start..end) {
                // A signal or a short wait of the kernel is no failure.
                Err(Errno::INTR | Errno::AGAIN) => {}
                outcome => break outcome,
            }
        };
        match outcome {
            Ok(()) => {
                self.committed.fetch_add(end - start, Ordering::Relaxed);
                true
            }
            Err(errno) => {
                self.failure.lock().get_or_insert(errno);
                self.stop.store(true, Ordering::Relaxed);
                false
            }
        }
    }
}
