//! The disk tier.

use super::{Capacity, EvictionKind, named::named_enum};

named_enum! {
    /// What blocks survive whose store was reported done.
    DiskDurability, ParseDurabilityError, "durability":
    /// The death of the process.
    Process = "process",
    /// The loss of power too: each store waits for the drive.
    Power = "power",
}

/// The disk tier. Off until it has a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DiskConfig {
    /// The directory; made where it is not there. It belongs to one manager at a time.
    pub dir: Option<String>,
    /// How much it holds. Bytes limit everything that the directory has on the drive.
    pub capacity: Capacity,
    /// What leaves it when it is full; the common policy when not stated.
    pub eviction: Option<EvictionKind>,
    /// What stored blocks survive.
    pub durability: DiskDurability,
    /// Whether to go past the page cache, where the file system can.
    pub direct: bool,
    /// Whether to keep what is in the directory; otherwise it starts empty. Only our own files go.
    pub reuse: bool,
    /// Blocks read at once; half as many are written at once.
    pub io_threads: usize,
}

impl Default for DiskConfig {
    fn default() -> Self {
        Self {
            dir: None,
            capacity: Capacity::Default,
            eviction: None,
            durability: DiskDurability::Process,
            direct: true,
            reuse: true,
            io_threads: 8,
        }
    }
}

impl DiskConfig {
    /// Whether there is no disk tier.
    pub fn is_off(&self) -> bool {
        self.dir.is_none() || self.capacity.is_off()
    }
}
