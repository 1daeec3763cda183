//! A file of the operating system.

use std::any::Any;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::OwnedFd;

use rustix::fs::{FallocateFlags, fallocate, fdatasync, fstat, ftruncate};
use rustix::io::{preadv, pwritev, retry_on_intr};

use super::super::{IoFile, IoMode};
use crate::sync::Arc;

pub(super) struct OsFile {
    fd: OwnedFd,
    path: Arc<str>,
    mode: IoMode,
    /// Dropped after the descriptor was closed.
    _guard: Option<Arc<dyn Any + Send + Sync>>,
}

impl OsFile {
    pub(super) fn new(
        fd: OwnedFd,
        path: Arc<str>,
        mode: IoMode,
        guard: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Self {
        Self { fd, path, mode, _guard: guard }
    }
}

impl IoFile for OsFile {
    fn path(&self) -> &Arc<str> {
        &self.path
    }

    fn mode(&self) -> &IoMode {
        &self.mode
    }

    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        Ok(preadv(&self.fd, buffers, offset)?)
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        Ok(pwritev(&self.fd, buffers, offset)?)
    }

    fn sync_data(&self) -> io::Result<()> {
        // Not tried again: after a failure the kernel may have dropped the pages, and a second call
        // would succeed over bytes that are lost.
        Ok(fdatasync(&self.fd)?)
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        let len = range.end - range.start;
        Ok(retry_on_intr(|| fallocate(&self.fd, FallocateFlags::empty(), range.start, len))?)
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let len = range.end - range.start;
        Ok(retry_on_intr(|| fallocate(&self.fd, flags, range.start, len))?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(retry_on_intr(|| ftruncate(&self.fd, len))?)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(fstat(&self.fd)?.st_size as u64)
    }
}

impl fmt::Debug for OsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OsFile({}, {:?})", self.path, self.mode)
    }
}
