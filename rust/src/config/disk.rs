//! The disk tier.

use super::{Capacity, DriveConfig, EvictionKind, named::named_enum};

named_enum! {
    /// What blocks survive whose store was reported done.
    DiskDurability, ParseDurabilityError, "durability":
    /// The death of the process.
    Process = "process",
    /// The loss of power too: each store waits for the drive.
    Power = "power",
}

/// The disk tier. Off until it has a directory: one, with `dir` and `capacity`, or several `drives`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DiskConfig {
    /// The directory; made where it is not there. It belongs to one manager at a time.
    pub dir: Option<String>,
    /// How much it holds. Bytes limit everything that the directory has on the drive.
    pub capacity: Capacity,
    /// Bytes that the drive may be made to write in a day, for the sake of its life; no limit when
    /// not stated. Where they are used up, only blocks that are offered a second time are written.
    pub write_bytes_per_day: Option<u64>,
    /// Several drives instead of one: each with a directory, a capacity and a budget of its own.
    pub drives: Vec<DriveConfig>,
    /// What leaves it when it is full; the common policy when not stated.
    pub eviction: Option<EvictionKind>,
    /// What stored blocks survive.
    pub durability: DiskDurability,
    /// Whether to go past the page cache, where the file system can.
    pub direct: bool,
    /// Whether to keep what is in the directory; otherwise it starts empty. Only our own files go.
    pub reuse: bool,
    /// Blocks read at once from each drive; half as many are written at once.
    pub io_threads: usize,
}

impl Default for DiskConfig {
    fn default() -> Self {
        Self {
            dir: None,
            capacity: Capacity::Default,
            write_bytes_per_day: None,
            drives: Vec::new(),
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
        self.in_use().is_empty()
    }

    /// The drives that hold something: of those listed, or the one that `dir` names.
    pub fn in_use(&self) -> Vec<DriveConfig> {
        let mut drives = self.drives.clone();
        if drives.is_empty()
            && let Some(dir) = &self.dir
        {
            let (dir, capacity) = (dir.clone(), self.capacity);
            let write_bytes_per_day = self.write_bytes_per_day;
            drives.push(DriveConfig { dir, capacity, write_bytes_per_day });
        }
        drives.retain(|drive| !drive.capacity.is_off());
        drives
    }

    /// The blocks of `block_bytes` that it was told to hold: 0 when it is off, `None` when nothing
    /// was stated.
    pub(super) fn blocks(&self, block_bytes: usize) -> Option<usize> {
        self.in_use().iter().try_fold(0_usize, |sum, drive| {
            Some(sum.saturating_add(drive.capacity.blocks(block_bytes)?))
        })
    }
}
