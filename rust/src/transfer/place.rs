//! Where the slots of a tier lie.

use super::{BlockMemory, disk::DiskBlocks};
use crate::{layout::BlockLayout, seal::SealTiling, sync::Arc};

/// One side of a copy: memory, or a drive.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum BlockPlace {
    /// Memory.
    Memory(Arc<BlockMemory>),
    /// Slots of a drive.
    Disk(Arc<DiskBlocks>),
}

impl BlockPlace {
    /// Shape and number of the blocks.
    pub fn layout(&self) -> &BlockLayout {
        match self {
            Self::Memory(memory) => memory.layout(),
            Self::Disk(disk) => disk.layout(),
        }
    }

    /// How each block is cut into tiles.
    pub fn tiling(&self) -> SealTiling {
        match self {
            Self::Memory(memory) => memory.tiling(),
            Self::Disk(disk) => disk.tiling(),
        }
    }

    /// The memory, where it is one.
    pub fn memory(&self) -> Option<&Arc<BlockMemory>> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::Disk(_) => None,
        }
    }

    /// The drive, where it is one.
    pub fn disk(&self) -> Option<&Arc<DiskBlocks>> {
        match self {
            Self::Disk(disk) => Some(disk),
            Self::Memory(_) => None,
        }
    }

    /// What it is, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            Self::Disk(_) => "a drive",
        }
    }
}

impl From<Arc<BlockMemory>> for BlockPlace {
    fn from(memory: Arc<BlockMemory>) -> Self {
        Self::Memory(memory)
    }
}

impl From<Arc<DiskBlocks>> for BlockPlace {
    fn from(disk: Arc<DiskBlocks>) -> Self {
        Self::Disk(disk)
    }
}
