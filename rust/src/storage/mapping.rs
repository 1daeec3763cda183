//! Anonymous memory from the kernel.
//!
//! The one owner of an address range: mapped at creation, unmapped at drop, never moved. It holds
//! no reference into the range and gives out addresses only.

use std::ops::Range;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// A private, zeroed, page-aligned mapping.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    /// A multiple of the page size.
    len: usize,
}

// SAFETY: the mapping is an address range that no thread owns more than another. It gives out
// addresses alone; who may use the bytes is said by the contract of `Storage`.
unsafe impl Send for Mapping {}
// SAFETY: as above, and no method changes the fields.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size` bytes, rounded up to whole pages. No page is committed, and none is counted
    /// against the kernel's overcommit limit before it is.
    pub(super) fn anonymous(size: usize) -> Result<Self, Errno> {
        let len = size.checked_next_multiple_of(rustix::param::page_size()).ok_or(Errno::NOMEM)?;
        if len > isize::MAX as usize {
            return Err(Errno::NOMEM);
        }
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        // The kernel never maps page 0 unasked.
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len })
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes, whole pages.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Commits the pages of `range` without changing a byte, so it may run beside their users.
    pub(super) fn populate(&self, range: Range<usize>) -> Result<(), Errno> {
        // SAFETY: populating faults pages in and leaves their contents alone.
        unsafe { self.advise(range, Advice::LinuxPopulateWrite) }
    }

    /// Asks for huge pages at the next commits.
    pub(super) fn prefer_huge_pages(&self) -> Result<(), Errno> {
        // SAFETY: the page size is invisible to whoever uses the bytes.
        unsafe { self.advise(0..self.len, Advice::LinuxHugepage) }
    }

    /// # Safety
    ///
    /// `advice` may not change or drop contents.
    unsafe fn advise(&self, range: Range<usize>, advice: Advice) -> Result<(), Errno> {
        debug_assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range lies inside the mapping, and the caller vouches for the advice.
        unsafe { madvise(self.base.as_ptr().add(range.start).cast(), range.len(), advice) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `anonymous` and is owned by this value alone; every user
        // of its bytes holds the storage, which is going. Unmapping whole pages of our own cannot
        // fail in a way that anybody could act on.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
