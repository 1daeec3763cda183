//! Ordinary host memory.
//!
//! One private anonymous mapping: page-aligned, zeroed, and committed page by page at first touch.
//! [`SystemStorage::prefault`] commits it beforehand, on several threads: committing is slower than
//! copying (measured on a virtual machine, one thread 0.3 to 1.6 GB/s, two 0.6 to 2.4), and the
//! first copies into a fresh tier would otherwise pay for it. Huge pages stay opt-in: on a
//! fragmented machine the kernel may compact memory for minutes to find them.

use std::ops::ControlFlow;

use super::mapping::Mapping;
use super::{
    AvailableMemory, MemoryLimit, RegisterableStorage, RegistrationHandles, Storage,
    StorageAllocator, StorageError, StorageMemset, StorageType, available_memory, prefault,
};
use crate::sync::Arc;

/// Zeroed, page-aligned host memory of this process.
#[derive(Debug)]
pub struct SystemStorage {
    /// Before `mapping`: what was registered is released while the memory is still there.
    registrations: RegistrationHandles,
    mapping: Mapping,
    size: usize,
}

impl SystemStorage {
    /// Reserves `size` bytes; they are committed at first touch.
    ///
    /// # Errors
    ///
    /// [`StorageError::InvalidConfig`] for 0, [`StorageError::AllocationFailed`] where memory,
    /// cgroup or address space do not give so much. The sizes are compared before a page is
    /// touched, with what is available now: who makes several storages and fills them later checks
    /// their sum first, with [`AvailableMemory::check`].
    pub fn new(size: usize) -> Result<Self, StorageError> {
        Self::within(size, &available_memory())
    }

    /// As [`new`](Self::new), with limits that were looked up before.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn within(size: usize, available: &AvailableMemory) -> Result<Self, StorageError> {
        StorageError::require_nonzero(size)?;
        available.check(size as u64)?;
        let mapping = Mapping::anonymous(size).map_err(|_| StorageError::AllocationFailed {
            requested: size as u64,
            available: available.bytes,
            limit: MemoryLimit::AddressSpace,
        })?;
        Ok(Self { registrations: RegistrationHandles::new(), mapping, size })
    }

    /// Asks the kernel to back the memory with huge pages where it can. Call it before anything
    /// is touched; pages that are there already stay as they are.
    ///
    /// # Errors
    ///
    /// [`StorageError::OperationFailed`] where the kernel is built without them. The memory stays
    /// usable.
    pub fn prefer_huge_pages(&self) -> Result<(), StorageError> {
        self.mapping.prefer_huge_pages().map_err(|errno| StorageError::OperationFailed {
            operation: "asking for huge pages",
            reason: errno.to_string(),
            remedy: "go on with ordinary pages, or use a kernel with transparent huge pages",
        })
    }

    /// Commits all pages on `threads` threads, this one among them, and returns the bytes that are
    /// committed then: everything, or less where `progress` stopped it.
    ///
    /// `progress` is called on this thread with the bytes committed so far; it stops the work by
    /// answering `Break`. No byte changes, so the storage may be in use meanwhile.
    ///
    /// # Errors
    ///
    /// [`StorageError::InvalidConfig`] for 0 threads, [`StorageError::OperationFailed`] where the
    /// kernel has no memory left or does not know the call (Linux before 5.14). What was committed
    /// stays so, the rest is committed at first touch.
    pub fn prefault(
        &self,
        threads: usize,
        progress: impl FnMut(usize) -> ControlFlow<()>,
    ) -> Result<usize, StorageError> {
        prefault::run(&self.mapping, threads, progress).map(|bytes| bytes.min(self.size))
    }
}

// SAFETY: the mapping is `size` bytes rounded up to pages, zeroed, readable and writable from its
// creation to the drop of `self`, at one address, and at most `isize::MAX` long. Nothing in this
// file makes a reference to its bytes.
unsafe impl Storage for SystemStorage {
    fn storage_type(&self) -> StorageType {
        StorageType::System
    }

    fn addr(&self) -> u64 {
        self.mapping.base().addr() as u64
    }

    fn size(&self) -> usize {
        self.size
    }

    unsafe fn as_ptr(&self) -> *const u8 {
        self.mapping.base()
    }

    unsafe fn as_mut_ptr(&self) -> *mut u8 {
        self.mapping.base()
    }
}

impl StorageMemset for SystemStorage {}

impl RegisterableStorage for SystemStorage {
    fn registrations(&self) -> &RegistrationHandles {
        &self.registrations
    }
}

/// Makes [`SystemStorage`]s.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemAllocator;

impl StorageAllocator for SystemAllocator {
    fn storage_type(&self) -> StorageType {
        StorageType::System
    }

    fn allocate(&self, size: usize) -> Result<Arc<dyn Storage>, StorageError> {
        Ok(Arc::new(SystemStorage::new(size)?))
    }
}
