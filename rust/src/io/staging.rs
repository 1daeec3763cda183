//! A fixed reserve of aligned buffers.
//!
//! Loads that cannot land where they are wanted (a device, unaligned memory) go through these. They
//! belong to nobody's cache, so a cache that is full, and cannot make room, starves no load. Taking
//! one never waits: with none left the caller is told and decides.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::{AlignedBuffer, IoBuffer, IoMemory};
use crate::sync::{Arc, Mutex};

/// Buffers of one size, lent one at a time. Clones share the reserve.
#[derive(Clone)]
pub struct Staging {
    shared: Arc<Shared>,
}

struct Shared {
    bytes: usize,
    count: usize,
    free: Mutex<Vec<AlignedBuffer>>,
}

impl Staging {
    /// `count` buffers of `bytes` each; memory is committed when they are first used.
    pub fn new(count: usize, bytes: usize) -> Self {
        let free = (0..count).map(|_| AlignedBuffer::new(bytes)).collect();
        Self { shared: Arc::new(Shared { bytes, count, free: Mutex::new(free) }) }
    }

    /// A buffer, with whatever its last user left in it; `None` while all are in use.
    pub fn take(&self) -> Option<StagingBuffer> {
        let buffer = self.shared.free.lock().pop()?;
        Some(StagingBuffer { buffer: Some(buffer), home: self.shared.clone() })
    }

    /// Buffers that can be taken now.
    pub fn available(&self) -> usize {
        self.shared.free.lock().len()
    }

    /// Buffers there are.
    pub fn count(&self) -> usize {
        self.shared.count
    }

    /// Bytes of each.
    pub fn buffer_bytes(&self) -> usize {
        self.shared.bytes
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Staging({} buffers of {} bytes)", self.count(), self.buffer_bytes())
    }
}

/// A buffer of a [`Staging`]; returns to it when dropped.
pub struct StagingBuffer {
    /// Taken only by `drop`.
    buffer: Option<AlignedBuffer>,
    home: Arc<Shared>,
}

impl Deref for StagingBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }
}

impl DerefMut for StagingBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.as_deref_mut().unwrap_or_default()
    }
}

impl IoMemory for StagingBuffer {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(self)
    }
}

impl From<StagingBuffer> for IoBuffer {
    fn from(buffer: StagingBuffer) -> Self {
        Self::Lent(Box::new(buffer))
    }
}

impl fmt::Debug for StagingBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StagingBuffer({} bytes)", self.len())
    }
}

impl Drop for StagingBuffer {
    fn drop(&mut self) {
        self.home.free.lock().extend(self.buffer.take());
    }
}
