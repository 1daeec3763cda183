//! Memory that goes into a request and comes back with its answer.
//!
//! The engine owns it meanwhile. Memory of somebody else (a slot of a pinned region, say) comes in as
//! an [`IoMemory`], which keeps whatever makes the memory good: it is dropped, or given back, when
//! the kernel is done with it and not before.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// What our own buffers, and offsets and lengths in our files, are aligned to. Every drive of today
/// takes direct I/O in such pieces.
pub const IO_ALIGNMENT: usize = 4096;

/// A zeroed buffer that starts at a multiple of [`IO_ALIGNMENT`].
pub struct AlignedBuffer {
    /// Longer than `len` by up to one alignment: the aligned part starts at `start`.
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// `len` zero bytes. Nothing is committed before it is touched.
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + IO_ALIGNMENT];
        let start = bytes.as_ptr().addr().next_multiple_of(IO_ALIGNMENT) - bytes.as_ptr().addr();
        Self { bytes, start, len }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} bytes)", self.len)
    }
}

/// Memory lent to a request.
///
/// It stays at one address while it is lent. An implementation holds what entitles it to the bytes
/// (the handle of a slot, say), so that the entitlement lasts as long as the I/O.
pub trait IoMemory: Any + fmt::Debug + Send {
    /// The bytes, to write to the file.
    fn bytes(&self) -> &[u8];

    /// The bytes, to be filled from the file; `None` where they may only be read.
    fn bytes_mut(&mut self) -> Option<&mut [u8]>;
}

/// A buffer of a request.
#[derive(Debug)]
#[non_exhaustive]
pub enum IoBuffer {
    /// One of ours.
    Owned(AlignedBuffer),
    /// Somebody else's. Turn the box into a `Box<dyn Any>` to get the concrete type back.
    Lent(Box<dyn IoMemory>),
}

impl IoBuffer {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(buffer) => buffer,
            Self::Lent(memory) => memory.bytes(),
        }
    }

    /// The bytes, to write; `None` where they may only be read.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Owned(buffer) => Some(buffer),
            Self::Lent(memory) => memory.bytes_mut(),
        }
    }
}

impl From<AlignedBuffer> for IoBuffer {
    fn from(buffer: AlignedBuffer) -> Self {
        Self::Owned(buffer)
    }
}
