//! The kinds of storage by name.

use std::fmt;

/// Where the bytes of a storage lie.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum StorageType {
    /// Ordinary host memory of this process.
    System,
    /// Host memory that several processes map.
    Shared,
    /// Memory of the GPU with this ordinal.
    Device(u32),
    /// Host memory registered with the GPU driver.
    Pinned,
    /// A file on a local disk; the number tells files of one process apart.
    Disk(u64),
    /// Memory reached through NIXL.
    Nixl,
    /// No bytes at all: sizes and addresses for bookkeeping only.
    Null,
}

impl StorageType {
    /// Whether the CPU can read and write the bytes through a pointer.
    pub const fn is_host_accessible(self) -> bool {
        matches!(self, Self::System | Self::Shared | Self::Pinned)
    }
}

impl fmt::Display for StorageType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System => f.write_str("system"),
            Self::Shared => f.write_str("shared"),
            Self::Device(ordinal) => write!(f, "device:{ordinal}"),
            Self::Pinned => f.write_str("pinned"),
            Self::Disk(id) => write!(f, "disk:{id}"),
            Self::Nixl => f.write_str("nixl"),
            Self::Null => f.write_str("null"),
        }
    }
}
