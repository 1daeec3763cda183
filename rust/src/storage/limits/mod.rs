//! How much memory this process may still have.
//!
//! The tightest of what the machine has left and what each control group above the process leaves.
//! Read before a region is made, so that a tier that cannot fit is refused with a number instead
//! of being killed while it fills. Everything is read below a root directory, so a tree of plain
//! files stands in for a machine.
//!
//! These are figures of one moment: nothing is reserved by reading them.

mod cgroup;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::StorageError;

/// What bounds the memory of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryLimit {
    /// The machine's memory, as `MemAvailable` estimates it.
    Physical,
    /// The limit in this file of a control group.
    Cgroup(PathBuf),
    /// Address space: `ulimit -v`, or a kernel that refuses to overcommit.
    AddressSpace,
    /// None was found.
    Unknown,
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Physical => f.write_str("physical memory (MemAvailable)"),
            Self::Cgroup(file) => write!(f, "cgroup limit {}", file.display()),
            Self::AddressSpace => {
                f.write_str("the limit on address space (ulimit -v, vm.overcommit_memory)")
            }
            Self::Unknown => f.write_str("no known limit"),
        }
    }
}

/// Bytes that can still be had, and what bounds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvailableMemory {
    /// Bytes; `u64::MAX` where nothing is known.
    pub bytes: u64,
    /// The tightest limit.
    pub limit: MemoryLimit,
}

impl AvailableMemory {
    /// Whether `requested` bytes fit.
    ///
    /// # Errors
    ///
    /// [`StorageError::AllocationFailed`] with both sizes and the limit.
    pub fn check(&self, requested: u64) -> Result<(), StorageError> {
        if requested <= self.bytes {
            return Ok(());
        }
        Err(StorageError::AllocationFailed {
            requested,
            available: self.bytes,
            limit: self.limit.clone(),
        })
    }
}

/// What this process can still have now.
pub fn available_memory() -> AvailableMemory {
    available_memory_in(Path::new("/"))
}

/// As [`available_memory`], reading `proc` and `sys` below `root`. Files that are missing or not
/// understood bound nothing.
pub fn available_memory_in(root: &Path) -> AvailableMemory {
    let physical = physical(root).map(|bytes| (bytes, MemoryLimit::Physical));
    let groups = cgroup::headrooms(root).into_iter();
    let all = physical.into_iter().chain(groups.map(|(b, file)| (b, MemoryLimit::Cgroup(file))));
    // The first of equals: the machine itself, then the innermost group.
    let tightest = all.min_by_key(|&(bytes, _)| bytes);
    let (bytes, limit) = tightest.unwrap_or((u64::MAX, MemoryLimit::Unknown));
    AvailableMemory { bytes, limit }
}

/// `MemAvailable` in bytes: free memory and what the kernel gives back without swapping.
fn physical(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
