//! Slots of a storage as buffers of an I/O request.
//!
//! With these a slot of pinned or system memory is read and written where it lies, without a copy in
//! between; direct I/O wants it to start at a multiple of 4096.

use std::any::Any;
use std::fmt;

use crate::io::{IoBuffer, IoMemory};
use crate::storage::{Storage, StorageAccess, StorageError};
use crate::sync::Arc;

/// A range of a storage, lent to an I/O request with what entitles to it.
pub struct SlotMemory {
    storage: Arc<dyn Storage>,
    offset: usize,
    len: usize,
    writable: bool,
    handle: Box<dyn Any + Send>,
}

impl SlotMemory {
    /// A range to be written to a file.
    ///
    /// # Errors
    ///
    /// As for [`StorageAccess::ptr_at`].
    ///
    /// # Safety
    ///
    /// While `handle` lives nobody writes the range.
    pub unsafe fn source(
        storage: Arc<dyn Storage>,
        offset: usize,
        len: usize,
        handle: Box<dyn Any + Send>,
    ) -> Result<Self, StorageError> {
        storage.ptr_at(offset, len)?;
        Ok(Self { storage, offset, len, writable: false, handle })
    }

    /// A range to be filled from a file.
    ///
    /// # Errors
    ///
    /// As for [`StorageAccess::ptr_at`].
    ///
    /// # Safety
    ///
    /// While `handle` lives nobody else reads or writes the range.
    pub unsafe fn target(
        storage: Arc<dyn Storage>,
        offset: usize,
        len: usize,
        handle: Box<dyn Any + Send>,
    ) -> Result<Self, StorageError> {
        storage.ptr_at(offset, len)?;
        Ok(Self { storage, offset, len, writable: true, handle })
    }

    /// Gives the handle back; the I/O has ended.
    pub fn into_handle(self) -> Box<dyn Any + Send> {
        self.handle
    }
}

impl IoMemory for SlotMemory {
    fn bytes(&self) -> &[u8] {
        // SAFETY: nobody writes the range while `handle` lives, by the contract of the constructors,
        // and a target's `bytes_mut` borrows `self` exclusively.
        unsafe { self.storage.slice(self.offset, self.len) }.unwrap_or_default()
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if !self.writable {
            return None;
        }
        // SAFETY: this is a target: nobody else uses the range while `handle` lives, and `self` is
        // borrowed exclusively.
        unsafe { self.storage.slice_mut(self.offset, self.len) }.ok()
    }
}

impl From<SlotMemory> for IoBuffer {
    fn from(memory: SlotMemory) -> Self {
        Self::Lent(Box::new(memory))
    }
}

impl fmt::Debug for SlotMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.storage.storage_type();
        write!(f, "SlotMemory({} bytes at {} of {kind} storage)", self.len, self.offset)
    }
}
