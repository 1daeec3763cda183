//! A storage without bytes.
//!
//! It has a size, so that layouts, pools and plans can be built over it, and refuses every access.
//! This is what an index-only run uses: all the bookkeeping and no memory.

use std::ptr;

use super::{Storage, StorageAllocator, StorageError, StorageMemset, StorageType};
use crate::sync::Arc;

/// A region that has a size and no bytes.
#[derive(Debug)]
pub struct NullStorage {
    size: usize,
}

impl NullStorage {
    /// A region of `size` bytes that are not there. Costs nothing at any size.
    ///
    /// # Errors
    ///
    /// [`StorageError::InvalidConfig`] for a size of 0, as for real storages.
    pub fn new(size: usize) -> Result<Self, StorageError> {
        StorageError::require_nonzero(size)?;
        Ok(Self { size })
    }
}

// SAFETY: `StorageType::Null` is not host-accessible, and both pointers are null.
unsafe impl Storage for NullStorage {
    fn storage_type(&self) -> StorageType {
        StorageType::Null
    }

    fn addr(&self) -> u64 {
        0
    }

    fn size(&self) -> usize {
        self.size
    }

    unsafe fn as_ptr(&self) -> *const u8 {
        ptr::null()
    }

    unsafe fn as_mut_ptr(&self) -> *mut u8 {
        ptr::null_mut()
    }
}

/// Refuses: there is nothing to fill.
impl StorageMemset for NullStorage {}

/// Makes [`NullStorage`]s.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullAllocator;

impl StorageAllocator for NullAllocator {
    fn storage_type(&self) -> StorageType {
        StorageType::Null
    }

    fn allocate(&self, size: usize) -> Result<Arc<dyn Storage>, StorageError> {
        Ok(Arc::new(NullStorage::new(size)?))
    }
}
