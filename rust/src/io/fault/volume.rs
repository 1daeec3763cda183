//! A decorator for any volume.
//!
//! A drive that is stalled answers nothing at all; every other fault concerns reads, writes and
//! syncs. The length of a file is always known: the system has it in memory.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use super::mood::{Fault, Faults, Mood};
use crate::io::{FileOp, IoError, IoFile, IoMode, OpenFile, Volume};
use crate::sync::{Arc, atomic::Ordering};

/// A volume in a bad mood; see the module documentation.
pub struct FaultVolume {
    inner: Arc<dyn Volume>,
    mood: Arc<Mood>,
}

impl FaultVolume {
    /// `inner` with `faults`.
    pub fn new(inner: Arc<dyn Volume>, faults: Faults) -> Self {
        Self { inner, mood: Arc::new(Mood::new(faults)) }
    }

    /// Other faults from the next operation on.
    pub fn set_faults(&self, faults: Faults) {
        *self.mood.faults.lock() = faults;
    }

    /// Nothing returns until [`resume`](Self::resume): a drive that hangs.
    pub fn stall(&self) {
        self.mood.stall();
    }

    /// Lets everything go on, also what hangs by the seed.
    pub fn resume(&self) {
        self.mood.resume();
    }

    /// Reads, writes or syncs of a file that were asked for so far; 0 for other operations.
    ///
    /// # Errors
    ///
    /// Those of opening the file, which must be there.
    pub fn count(&self, name: &str, op: FileOp) -> Result<u64, IoError> {
        let file = self.inner.open(name, OpenFile::default())?;
        Ok(self.mood.count(file.path(), op))
    }

    /// Operations that hang now.
    pub fn hanging(&self) -> usize {
        self.mood.hanging()
    }

    /// Whether room can be reserved and given back; otherwise `EOPNOTSUPP`.
    pub fn set_abilities(&self, allocate: bool, punch: bool) {
        self.mood.no_allocate.store(!allocate, Ordering::Relaxed);
        self.mood.no_punch.store(!punch, Ordering::Relaxed);
    }

    /// From now on reads that touch `range` of a file fail with `EIO`: a bad sector. One that `heals`
    /// is good again once a single write has covered it, as where the drive puts a spare one in its
    /// place; others stay bad.
    ///
    /// # Errors
    ///
    /// Those of opening the file, which must be there.
    pub fn damage(&self, name: &str, range: Range<u64>, heals: bool) -> Result<(), IoError> {
        let file = self.inner.open(name, OpenFile::default())?;
        self.mood.damage(file.path().clone(), range, heals);
        Ok(())
    }

    /// Operations that were hit so far.
    pub fn injected(&self) -> u64 {
        self.mood.injected.load(Ordering::Relaxed)
    }
}

impl Volume for FaultVolume {
    fn path(&self) -> &str {
        self.inner.path()
    }

    fn names(&self) -> Result<Vec<String>, IoError> {
        self.mood.pass(false);
        self.inner.names()
    }

    fn open(&self, name: &str, how: OpenFile) -> Result<Arc<dyn IoFile>, IoError> {
        self.mood.pass(false);
        let inner = self.inner.open(name, how)?;
        Ok(Arc::new(FaultFile { inner, mood: self.mood.clone() }))
    }

    fn remove(&self, name: &str) -> Result<(), IoError> {
        self.mood.pass(false);
        self.inner.remove(name)
    }

    fn sync(&self) -> Result<(), IoError> {
        self.mood.pass(false);
        self.inner.sync()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
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
        let fault = self.mood.next(self.path(), FileOp::Read)?;
        let total: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        self.mood.read(self.path(), offset..offset + total as u64)?;
        let Fault::Short = fault else { return self.inner.read_at(buffers, offset) };
        let mut left = self.half(total);
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
        let fault = self.mood.next(self.path(), FileOp::Write)?;
        if let Fault::None = fault {
            let written = self.inner.write_at(buffers, offset)?;
            self.mood.written(self.path(), &(offset..offset + written as u64));
            return Ok(written);
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
        self.mood.next(self.path(), FileOp::Sync)?;
        self.inner.sync_data()
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        self.mood.pass(false);
        if self.mood.no_allocate.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        self.inner.allocate(range)
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        self.mood.pass(false);
        if self.mood.no_punch.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        self.inner.punch(range)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.mood.pass(false);
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
