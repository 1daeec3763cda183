//! Owned bytes: where the blocks of a tier lie.
//!
//! A [`Storage`] is one region of a stated size and a stated kind. Allocators choose and report;
//! what lies where inside a region is the layout's business, who may use it is the pool's, and
//! copying is the transfer engine's. Nothing in here copies or knows a key.
//!
//! # Who may read and write
//!
//! A region is handed out shared (`Arc<dyn Storage>`) and hands out raw pointers from `&self`, for
//! reading and for writing. That is sound because the region is not the owner of the right to use
//! its bytes: the memory comes from the kernel and not from a Rust object, the storage keeps no
//! reference to it, and making a raw pointer aliases nothing. The right to use a *range* belongs to
//! the handle of the slot that covers it (unique while it is being written, shared once it is
//! read-only), and everything that turns a pointer into a reference is `unsafe` and names that
//! handle as its condition.
//!
//! # Costs
//!
//! Making a region reserves address space and reads a few small files under `/proc` and `/sys`; its
//! pages are committed at first touch, or beforehand by [`SystemStorage::prefault`].
#![allow(unsafe_code)]

mod access;
pub(crate) mod disk;
mod error;
mod kind;
mod limits;
mod mapping;
mod null;
mod prefault;
mod register;
mod system;

use std::fmt;
use std::path::Path;

pub use access::{StorageAccess, StorageMemset};
pub use disk::{DiskAllocator, DiskStorage};
pub use error::StorageError;
pub use kind::StorageType;
pub use limits::{AvailableMemory, MemoryLimit, available_memory, available_memory_in};
pub use null::{NullAllocator, NullStorage};
pub use register::{RegisterableStorage, RegistrationHandle, RegistrationHandles};
pub use system::{SystemAllocator, SystemStorage};

use crate::sync::Arc;

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("dynamo_llm runs on 64-bit Linux, x86_64 or aarch64");

/// One owned region of bytes.
///
/// Use [`StorageAccess`] for bounds-checked pointers and slices; it works on every storage, also
/// behind `dyn`.
///
/// # Safety
///
/// Safe code relies on what an implementation says. While the storage lives:
///
/// * where [`storage_type`](Self::storage_type) is host-accessible, [`as_ptr`](Self::as_ptr) and
///   [`as_mut_ptr`](Self::as_mut_ptr) return the same non-null address at each call, and
///   [`size`](Self::size) bytes from it are initialised, readable and writable; `size` is at most
///   `isize::MAX`;
/// * elsewhere both return null;
/// * the storage itself keeps no reference to its bytes and never touches them on its own.
pub unsafe trait Storage: fmt::Debug + Send + Sync {
    /// The kind of place.
    fn storage_type(&self) -> StorageType;

    /// The first byte's address in the space that the kind implies: virtual memory for host and
    /// device storages, 0 where there are no addresses.
    fn addr(&self) -> u64;

    /// Usable bytes, as asked for at creation.
    fn size(&self) -> usize;

    /// The first byte, to read from; null where the host cannot reach the bytes.
    ///
    /// # Safety
    ///
    /// The pointer is good while the storage lives. A range may be read only by who holds the
    /// handle of the slot that covers it.
    unsafe fn as_ptr(&self) -> *const u8;

    /// The first byte, to write to; null where the host cannot reach the bytes.
    ///
    /// # Safety
    ///
    /// As for [`as_ptr`](Self::as_ptr), and a range may be written only by its one owner.
    unsafe fn as_mut_ptr(&self) -> *mut u8;
}

/// Makes storages of one kind.
pub trait StorageAllocator: fmt::Debug + Send + Sync {
    /// The kind of storage that [`allocate`](Self::allocate) makes.
    fn storage_type(&self) -> StorageType;

    /// A new region of `size` bytes.
    ///
    /// # Errors
    ///
    /// [`StorageError::InvalidConfig`] for a size that can never work, such as 0, and
    /// [`StorageError::AllocationFailed`] where there is not so much room, in both cases before any
    /// memory is touched.
    fn allocate(&self, size: usize) -> Result<Arc<dyn Storage>, StorageError>;

    /// The folder that it makes files in; `None` for one that makes none.
    fn folder(&self) -> Option<&Path> {
        None
    }
}
