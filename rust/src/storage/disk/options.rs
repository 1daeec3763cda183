//! How a directory is opened.

use super::Geometry;

/// What acknowledged blocks survive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Durability {
    /// The death of the process.
    #[default]
    Process,
    /// The loss of power too: every acknowledgement waits for the drive to make it durable.
    Power,
}

/// How room for slots is taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Preallocation {
    /// Reserved; where the file system cannot, the file is sparse and a finding says so.
    #[default]
    Auto,
    /// Reserved; a file system that cannot is an error.
    Require,
    /// Never: the file is sparse, and takes room as it is written.
    Never,
}

/// How a [`DiskDirectory`](super::DiskDirectory) is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DiskOptions {
    /// The most bytes that the directory has on the drive, everything included.
    pub bytes: u64,
    /// The geometry to store under. Others that are there stay.
    pub geometry: Geometry,
    /// What acknowledged blocks survive.
    pub durability: Durability,
    /// How room is taken.
    pub preallocation: Preallocation,
    /// Goes past the page cache where the file system can.
    pub direct: bool,
    /// Keeps what is there; otherwise files of ours are removed first.
    pub reuse: bool,
}

impl DiskOptions {
    /// At most `bytes`, for blocks of `geometry`; everything else as by default.
    pub fn new(bytes: u64, geometry: Geometry) -> Self {
        Self {
            bytes,
            geometry,
            durability: Durability::default(),
            preallocation: Preallocation::default(),
            direct: true,
            reuse: true,
        }
    }
}
