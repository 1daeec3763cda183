//! A volume of which one operation hangs, as if in the kernel, or one kind fails on one file, and
//! nothing else does.

use std::{
    fmt,
    io::{self, IoSlice, IoSliceMut},
    ops::Range,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use dynamo_llm::block_manager::io::{
    FileOp, IoError, IoFile, IoMode, OpenFile, Volume, fault::MemoryVolume,
};

/// What the gate is doing.
#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Open,
    /// The next such operation on a file with this ending is stopped.
    Armed(FileOp, &'static str),
    /// One is stopped, at this offset.
    Shut(FileOp, &'static str, u64),
    /// None hangs: each such operation on a file with this ending fails.
    Failing(FileOp, &'static str),
}

#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    trespassed: AtomicBool,
}

impl Gate {
    /// The next operation of that kind on the file with that ending hangs; one that does goes on.
    pub(crate) fn arm(&self, op: FileOp, ending: &'static str) {
        *self.state.lock().unwrap() = State::Armed(op, ending);
        self.changed.notify_all();
    }

    /// Each operation of that kind on the file with that ending fails.
    pub(crate) fn fail(&self, op: FileOp, ending: &'static str) {
        *self.state.lock().unwrap() = State::Failing(op, ending);
        self.changed.notify_all();
    }

    /// Waits until one does.
    pub(crate) fn wait_until_shut(&self) {
        let state = self.state.lock().unwrap();
        let not_yet = |state: &mut State| !matches!(state, State::Shut(..));
        let in_time = self.changed.wait_timeout_while(state, crate::rig::LONG, not_yet);
        assert!(!in_time.unwrap().1.timed_out(), "nothing came to the gate");
    }

    pub(crate) fn is_shut(&self) -> bool {
        matches!(*self.state.lock().unwrap(), State::Shut(..))
    }

    pub(crate) fn open(&self) {
        *self.state.lock().unwrap() = State::Open;
        self.changed.notify_all();
    }

    /// Whether something was written where a write was stopped.
    pub(crate) fn trespassed(&self) -> bool {
        self.trespassed.load(Ordering::Relaxed)
    }

    fn pass(&self, op: FileOp, ending: &'static str, offset: u64) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        if *state == State::Failing(op, ending) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        if *state == State::Shut(op, ending, offset) && op == FileOp::Write {
            self.trespassed.store(true, Ordering::Relaxed);
        }
        if *state != State::Armed(op, ending) {
            return Ok(());
        }
        *state = State::Shut(op, ending, offset);
        self.changed.notify_all();
        let shut = |state: &mut State| matches!(state, State::Shut(..));
        drop(self.changed.wait_while(state, shut).unwrap());
        Ok(())
    }
}

/// A volume in memory with a gate.
#[derive(Debug)]
pub(crate) struct GatedVolume {
    pub(crate) inner: MemoryVolume,
    pub(crate) gate: Arc<Gate>,
}

impl GatedVolume {
    pub(crate) fn new() -> Self {
        let gate = Arc::new(Gate {
            state: Mutex::new(State::Open),
            changed: Condvar::new(),
            trespassed: AtomicBool::new(false),
        });
        Self { inner: MemoryVolume::new(), gate }
    }
}

impl Volume for GatedVolume {
    fn path(&self) -> &str {
        self.inner.path()
    }

    fn names(&self) -> Result<Vec<String>, IoError> {
        self.inner.names()
    }

    fn open(&self, name: &str, how: OpenFile) -> Result<Arc<dyn IoFile>, IoError> {
        let inner = self.inner.open(name, how)?;
        let ending = [".data", ".table"].into_iter().find(|ending| name.ends_with(ending));
        Ok(match ending {
            Some(ending) => Arc::new(GatedFile { inner, ending, gate: self.gate.clone() }),
            None => inner,
        })
    }

    fn remove(&self, name: &str) -> Result<(), IoError> {
        self.inner.remove(name)
    }

    fn sync(&self) -> Result<(), IoError> {
        self.inner.sync()
    }
}

struct GatedFile {
    inner: Arc<dyn IoFile>,
    ending: &'static str,
    gate: Arc<Gate>,
}

impl fmt::Debug for GatedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl IoFile for GatedFile {
    fn path(&self) -> &Arc<str> {
        self.inner.path()
    }

    fn mode(&self) -> &IoMode {
        self.inner.mode()
    }

    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        self.gate.pass(FileOp::Read, self.ending, offset)?;
        self.inner.read_at(buffers, offset)
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.gate.pass(FileOp::Write, self.ending, offset)?;
        self.inner.write_at(buffers, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
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
