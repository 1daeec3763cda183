//! A file that is read and written at offsets.
//!
//! An implementation makes one attempt per call and reports what the system said. [`read_full`] and
//! [`write_full`] carry on after partial transfers and interruptions and turn answers into typed
//! errors; everything above uses them.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use super::{FileOp, IoError, Place};
use crate::sync::Arc;

/// Most buffers that one system call takes.
const MAX_VECTORS: usize = 1024;

/// How a file's bytes reach the drive.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum IoMode {
    /// Past the page cache. Offsets, lengths and memory are multiples of `alignment`.
    Direct {
        /// Bytes.
        alignment: u32,
    },
    /// Through the page cache.
    Buffered {
        /// Why not direct.
        reason: Arc<str>,
    },
}

impl IoMode {
    /// What offsets, lengths and memory must be multiples of.
    pub fn alignment(&self) -> u32 {
        match self {
            Self::Direct { alignment } => *alignment,
            Self::Buffered { .. } => 1,
        }
    }
}

/// An open file. Closed when the last clone of its `Arc` goes.
pub trait IoFile: fmt::Debug + Send + Sync {
    /// Its path, for messages.
    fn path(&self) -> &Arc<str>;

    /// How its bytes reach the drive.
    fn mode(&self) -> &IoMode;

    /// One attempt to fill `buffers` from `offset` on: the bytes that were read, 0 at the end.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize>;

    /// One attempt to write `buffers` from `offset` on: the bytes that were taken.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;

    /// Makes durable what was written, and as much of the length as is needed to read it.
    ///
    /// # Errors
    ///
    /// What the system said. The state of the written bytes is then unknown for good: a second call
    /// that succeeds says nothing about them.
    fn sync_data(&self) -> io::Result<()>;

    /// Reserves room for `range` and extends the file to its end where it is shorter.
    ///
    /// # Errors
    ///
    /// What the system said; `EOPNOTSUPP` or `EINVAL` where the file system cannot.
    fn allocate(&self, range: Range<u64>) -> io::Result<()>;

    /// Gives the room of `range` back; it reads as zeros then. The length stays.
    ///
    /// # Errors
    ///
    /// What the system said; `EOPNOTSUPP` or `EINVAL` where the file system cannot.
    fn punch(&self, range: Range<u64>) -> io::Result<()>;

    /// Cuts or extends the file; what is new reads as zeros.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Its length.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn len(&self) -> io::Result<u64>;

    /// Whether it has no bytes.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }
}

impl dyn IoFile + '_ {
    /// Where an operation on this file is.
    pub fn place(&self, op: FileOp, offset: u64, len: u64) -> Place {
        Place { file: self.path().clone(), op, offset, len }
    }

    /// A closure that turns the system's answer into a typed error.
    pub(crate) fn failed(&self, op: FileOp, range: Range<u64>) -> impl Fn(io::Error) -> IoError {
        let place = self.place(op, range.start, range.end - range.start);
        move |error| IoError::from_os(place.clone(), &error)
    }
}

/// Fills all of `buffers`, in order, with the bytes from `offset` on.
///
/// # Errors
///
/// [`IoError::Misaligned`] before anything is read, [`IoError::Short`] where the file ends, and
/// whatever the system says. The buffers then hold anything.
pub fn read_full(file: &dyn IoFile, buffers: &mut [&mut [u8]], offset: u64) -> Result<(), IoError> {
    let lens = buffers.iter().map(|buffer| (buffer.as_ptr().addr(), buffer.len()));
    let total = check_alignment(file, FileOp::Read, lens, offset)?;
    whole(file, FileOp::Read, offset, total, |done| {
        let mut skip = done as usize;
        let mut slices: Vec<IoSliceMut<'_>> = Vec::with_capacity(buffers.len());
        for buffer in &mut *buffers {
            let skipped = skip.min(buffer.len());
            skip -= skipped;
            if skipped < buffer.len() && slices.len() < MAX_VECTORS {
                slices.push(IoSliceMut::new(&mut buffer[skipped..]));
            }
        }
        file.read_at(&mut slices, offset + done)
    })
}

/// Writes all of `buffers`, in order, from `offset` on.
///
/// # Errors
///
/// [`IoError::Misaligned`] before anything is written, [`IoError::Short`] where the drive takes no
/// more, and whatever the system says. The range then holds anything.
pub fn write_full(file: &dyn IoFile, buffers: &[&[u8]], offset: u64) -> Result<(), IoError> {
    let lens = buffers.iter().map(|buffer| (buffer.as_ptr().addr(), buffer.len()));
    let total = check_alignment(file, FileOp::Write, lens, offset)?;
    whole(file, FileOp::Write, offset, total, |done| {
        let mut skip = done as usize;
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(buffers.len());
        for buffer in buffers {
            let skipped = skip.min(buffer.len());
            skip -= skipped;
            if skipped < buffer.len() && slices.len() < MAX_VECTORS {
                slices.push(IoSlice::new(&buffer[skipped..]));
            }
        }
        file.write_at(&slices, offset + done)
    })
}

/// Bytes of all buffers; refuses what direct I/O cannot take.
fn check_alignment(
    file: &dyn IoFile,
    op: FileOp,
    buffers: impl Iterator<Item = (usize, usize)>,
    offset: u64,
) -> Result<u64, IoError> {
    let alignment = file.mode().alignment();
    let aligned = |number: u64| number.is_multiple_of(u64::from(alignment));
    let (mut total, mut good) = (0, aligned(offset));
    for (address, len) in buffers {
        total += len as u64;
        good &= aligned(address as u64) && aligned(len as u64);
    }
    if good && offset.checked_add(total).is_some() {
        return Ok(total);
    }
    Err(IoError::Misaligned { place: file.place(op, offset, total), alignment })
}

/// Calls `attempt(done)` until `total` bytes are done.
fn whole(
    file: &dyn IoFile,
    op: FileOp,
    offset: u64,
    total: u64,
    mut attempt: impl FnMut(u64) -> io::Result<usize>,
) -> Result<(), IoError> {
    let alignment = u64::from(file.mode().alignment());
    let mut done = 0;
    while done < total {
        match attempt(done) {
            Ok(bytes) => {
                let reached = (done + bytes as u64).min(total);
                if reached == total {
                    return Ok(());
                }
                // Direct I/O goes on at whole units only; less than one more is the end.
                let next = reached / alignment * alignment;
                if next <= done {
                    return Err(IoError::Short {
                        place: file.place(op, offset, total),
                        done: reached,
                    });
                }
                done = next;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(IoError::from_os(file.place(op, offset, total), &error));
            }
        }
    }
    Ok(())
}
