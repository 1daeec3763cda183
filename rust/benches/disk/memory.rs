//! Memory that a drive takes in few segments: huge pages, committed, with bytes that nothing could
//! guess.
#![allow(unsafe_code)]

use std::slice;
use std::sync::Arc;

use dynamo_llm::block_manager::io::{IoBuffer, IoMemory};
use dynamo_llm::block_manager::storage::{
    Storage, StorageAllocator, StorageError, StorageType, SystemStorage,
};

/// Makes memory in huge pages, filled.
#[derive(Debug)]
pub(crate) struct HugePages;

impl HugePages {
    pub(crate) fn filled(size: usize) -> Result<Arc<SystemStorage>, StorageError> {
        let storage = SystemStorage::new(size)?;
        if let Err(error) = storage.prefer_huge_pages() {
            eprintln!("{error}");
        }
        let mut state = 1_u64;
        // SAFETY: the storage was made above and nobody else knows of it; it is readable, writable
        // and initialised all over.
        let bytes = unsafe { slice::from_raw_parts_mut(storage.as_mut_ptr(), size) };
        for word in bytes.chunks_exact_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word.copy_from_slice(&state.to_le_bytes());
        }
        Ok(Arc::new(storage))
    }
}

impl StorageAllocator for HugePages {
    fn storage_type(&self) -> StorageType {
        StorageType::System
    }

    fn allocate(&self, size: usize) -> Result<Arc<dyn Storage>, StorageError> {
        Ok(Self::filled(size)?)
    }
}

/// Some bytes of a storage, which nobody else has.
#[derive(Debug)]
pub(crate) struct Part {
    storage: Arc<SystemStorage>,
    start: usize,
    len: usize,
}

impl Part {
    /// Cuts new memory into `count` parts of `len` bytes.
    pub(crate) fn many(count: usize, len: usize) -> Vec<Self> {
        let storage = HugePages::filled(count * len).unwrap();
        let part = |at| Self { storage: storage.clone(), start: at * len, len };
        (0..count).map(part).collect()
    }
}

impl IoMemory for Part {
    fn bytes(&self) -> &[u8] {
        // SAFETY: `many` cuts initialised memory into parts that do not overlap, and a part is
        // borrowed like the bytes.
        unsafe { slice::from_raw_parts(self.storage.as_ptr().add(self.start), self.len) }
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as above, and the part is borrowed exclusively.
        Some(unsafe {
            slice::from_raw_parts_mut(self.storage.as_mut_ptr().add(self.start), self.len)
        })
    }
}

impl From<Part> for IoBuffer {
    fn from(part: Part) -> Self {
        Self::Lent(Box::new(part))
    }
}
