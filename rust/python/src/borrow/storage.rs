//! Memory that belongs to tensors of another library.
#![allow(unsafe_code)]

use dynamo_llm::block_manager::storage::{Storage, StorageType};

use crate::dlpack::Lent;

/// A run of memory that one or more lent tensors cover; it is there as long as they are.
#[derive(Debug)]
pub(super) struct BorrowedStorage {
    base: *mut u8,
    size: usize,
    #[expect(dead_code, reason = "kept for its drop")]
    lent: Vec<Lent>,
}

// SAFETY: the address is only handed out; who may use the bytes behind it is the business of slots.
unsafe impl Send for BorrowedStorage {}
// SAFETY: as above.
unsafe impl Sync for BorrowedStorage {}

impl BorrowedStorage {
    /// # Safety
    /// `size` bytes from `base` on lie within the memory that `lent` keep, which is writable.
    pub(super) unsafe fn new(base: *mut u8, size: usize, lent: Vec<Lent>) -> Self {
        Self { base, size, lent }
    }
}

// SAFETY: whoever made it vouches for the bytes, at one address until `lent` are dropped; nothing
// in here touches them.
unsafe impl Storage for BorrowedStorage {
    fn storage_type(&self) -> StorageType {
        StorageType::System
    }

    fn addr(&self) -> u64 {
        self.base.addr() as u64
    }

    fn size(&self) -> usize {
        self.size
    }

    unsafe fn as_ptr(&self) -> *const u8 {
        self.base
    }

    unsafe fn as_mut_ptr(&self) -> *mut u8 {
        self.base
    }
}
