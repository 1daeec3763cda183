//! Bounds-checked access to the bytes of any storage.
//!
//! The one place that turns a storage's base address into pointers and slices. A range is checked
//! in full before an address is computed, so no sum can wrap and no pointer leaves the region.

use std::ptr::NonNull;

use super::{Storage, StorageError};

/// Pointers and slices into a storage, for every [`Storage`], also behind `dyn`.
pub trait StorageAccess: Storage {
    /// Checks that `offset..offset + len` lies inside the storage.
    ///
    /// # Errors
    ///
    /// [`StorageError::OutOfBounds`].
    fn check_range(&self, offset: usize, len: usize) -> Result<(), StorageError> {
        let size = self.size();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(StorageError::OutOfBounds { offset, len, size }),
        }
    }

    /// The address of byte `offset`, good for `len` bytes while the storage lives.
    ///
    /// Making the pointer is safe; using it needs the handle of the slot that covers the range.
    ///
    /// # Errors
    ///
    /// [`StorageError::OutOfBounds`], and [`StorageError::NotAccessible`] where the CPU cannot
    /// reach the bytes.
    fn ptr_at(&self, offset: usize, len: usize) -> Result<NonNull<u8>, StorageError> {
        self.check_range(offset, len)?;
        let storage = self.storage_type();
        let refused = StorageError::NotAccessible { storage };
        if !storage.is_host_accessible() {
            return Err(refused);
        }
        // SAFETY: only the address is taken here. The bytes behind it are used by callers that
        // vouch for the range, see `slice` and `slice_mut`.
        let base = NonNull::new(unsafe { self.as_mut_ptr() }).ok_or(refused)?;
        // SAFETY: `offset <= size`, and `size` bytes from `base` are one mapped region of at most
        // `isize::MAX` bytes by the contract of `Storage`.
        Ok(unsafe { base.add(offset) })
    }

    /// The bytes of `offset..offset + len`.
    ///
    /// # Errors
    ///
    /// As for [`ptr_at`](Self::ptr_at).
    ///
    /// # Safety
    ///
    /// Nobody writes the range while the slice lives: the caller holds a handle of the slot that
    /// covers it.
    unsafe fn slice(&self, offset: usize, len: usize) -> Result<&[u8], StorageError> {
        let start = self.ptr_at(offset, len)?;
        // SAFETY: `ptr_at` checked the range, whose bytes are initialised by the contract of
        // `Storage`; the caller vouches that nobody writes them; the slice borrows the storage.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), len) })
    }

    /// The bytes of `offset..offset + len`, to write.
    ///
    /// # Errors
    ///
    /// As for [`ptr_at`](Self::ptr_at).
    ///
    /// # Safety
    ///
    /// Nobody else reads or writes the range while the slice lives: the caller owns the one
    /// writable handle of the slot that covers it.
    #[allow(clippy::mut_from_ref, reason = "slots own their ranges, see the module `storage`")]
    unsafe fn slice_mut(&self, offset: usize, len: usize) -> Result<&mut [u8], StorageError> {
        let start = self.ptr_at(offset, len)?;
        // SAFETY: `ptr_at` checked the range, whose bytes are initialised by the contract of
        // `Storage`; the caller vouches that it is the only user; the slice borrows the storage.
        Ok(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) })
    }
}

impl<S: Storage + ?Sized> StorageAccess for S {}

/// Filling a range with one byte.
pub trait StorageMemset: Storage {
    /// Sets `offset..offset + len` to `value`.
    ///
    /// Takes the storage exclusively, before it is shared out as slots; a single slot is wiped
    /// through its own handle.
    ///
    /// # Errors
    ///
    /// As for [`StorageAccess::ptr_at`]; nothing is written then.
    fn memset(&mut self, value: u8, offset: usize, len: usize) -> Result<(), StorageError> {
        // SAFETY: `&mut self` says that the storage is not shared, so there is no slot handle
        // besides and nobody else uses the bytes.
        unsafe { self.slice_mut(offset, len)? }.fill(value);
        Ok(())
    }
}
