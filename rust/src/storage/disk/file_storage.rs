//! A file as a storage.
//!
//! A region of fixed size on a drive, as other storages are regions of memory. It has no bytes that
//! the CPU can reach: it is read and written through an engine. It lasts as long as its owner; blocks
//! that are to survive live in a [`DiskDirectory`](super::DiskDirectory).

use std::path::{Path, PathBuf};
use std::process;
use std::ptr;

use super::{Preallocation, room};
use crate::io::{IoError, IoFile, OpenFile, OsVolume, Volume};
use crate::storage::{Storage, StorageAllocator, StorageError, StorageMemset, StorageType};
use crate::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Tells the disk storages of this process apart.
fn next_id() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// A file of a fixed size, removed with its owner.
#[derive(Debug)]
pub struct DiskStorage {
    id: u64,
    size: usize,
    file: Arc<dyn IoFile>,
    volume: OsVolume,
    name: String,
}

impl DiskStorage {
    /// Makes the file at `path`, which must not be there, and takes room for `size` bytes, rounded
    /// up to 4096.
    ///
    /// # Errors
    ///
    /// [`StorageError::InvalidConfig`] for a size of 0 and a path that is there or names no file, and
    /// [`StorageError::OperationFailed`] for what the system says, a full drive among it.
    pub fn new(path: &Path, size: usize) -> Result<Self, StorageError> {
        StorageError::require_nonzero(size)?;
        let invalid = |remedy| StorageError::InvalidConfig {
            field: "path",
            value: path.display().to_string(),
            remedy,
        };
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| invalid("name a file, in UTF-8"))?.to_owned();
        if path.symlink_metadata().is_ok() {
            return Err(invalid("name a file that is not there yet"));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let volume = OsVolume::new(folder.unwrap_or(Path::new(".")), true)
            .map_err(|error| failed(&error))?;
        let how = OpenFile { create: true, write: true, direct: true };
        let file = volume.open(&name, how).map_err(|error| failed(&error))?;
        let storage = Self { id: next_id(), size, file, volume, name };
        let end = (size as u64).next_multiple_of(crate::io::IO_ALIGNMENT as u64);
        room::take(&*storage.file, 0..end, Preallocation::Auto).map_err(|error| {
            StorageError::OperationFailed {
                operation: "taking room on the drive",
                reason: error.to_string(),
                remedy: "ask for less, or free some there",
            }
        })?;
        Ok(storage)
    }

    /// The file, to read and write through an engine.
    pub fn file(&self) -> &Arc<dyn IoFile> {
        &self.file
    }
}

fn failed(error: &IoError) -> StorageError {
    StorageError::OperationFailed {
        operation: "making a file",
        reason: error.to_string(),
        remedy: "name a folder on a drive that can be written",
    }
}

impl Drop for DiskStorage {
    fn drop(&mut self) {
        // An engine that still has the file open goes on with it; its room is given back then.
        if let Err(error) = self.volume.remove(&self.name) {
            tracing::warn!(%error, "the file of a storage stays behind");
        }
    }
}

// SAFETY: `StorageType::Disk` is not host-accessible, and both pointers are null.
unsafe impl Storage for DiskStorage {
    fn storage_type(&self) -> StorageType {
        StorageType::Disk(self.id)
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

/// Refuses: the CPU cannot reach the bytes. New files read as zeros.
impl StorageMemset for DiskStorage {}

/// Makes [`DiskStorage`]s in one folder.
#[derive(Debug)]
pub struct DiskAllocator {
    folder: PathBuf,
    made: AtomicU64,
}

impl DiskAllocator {
    /// Files in the folder at `path`, which exists.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { folder: path.into(), made: AtomicU64::new(0) }
    }
}

impl StorageAllocator for DiskAllocator {
    fn storage_type(&self) -> StorageType {
        StorageType::Disk(0)
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.folder)
    }

    fn allocate(&self, size: usize) -> Result<Arc<dyn Storage>, StorageError> {
        loop {
            let number = self.made.fetch_add(1, Ordering::Relaxed);
            let path = self.folder.join(format!("dynamo-{}-{number}.storage", process::id()));
            // Left by a process that had our id and was killed: another name is free.
            if path.symlink_metadata().is_err() {
                return Ok(Arc::new(DiskStorage::new(&path, size)?));
            }
        }
    }
}
