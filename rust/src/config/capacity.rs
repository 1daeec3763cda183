//! What one tier is made of.

use super::{EvictionKind, Tier, named::named_enum};
use crate::layout::{LayoutType, PAGED_ALIGNMENT};

named_enum! {
    /// How the blocks of a tier lie in memory.
    LayoutKind, ParseLayoutKindError, "layout":
    /// One run: block after block, all layers of a block together, no padding.
    FullyContiguous = "fully_contiguous",
    /// Block after block, each aligned to the I/O page of 4096 bytes: a block is one run that
    /// direct I/O can take as it is.
    Paged = "paged",
    /// One region per layer, as inference engines keep their cache; K and V of a block side by
    /// side.
    LayerSeparate = "layer_separate",
}

impl LayoutKind {
    /// Bytes that one block takes up, padding included; `None` on overflow.
    pub fn slot_bytes(self, block_bytes: usize) -> Option<usize> {
        match self {
            LayoutKind::Paged => block_bytes.checked_next_multiple_of(PAGED_ALIGNMENT),
            LayoutKind::FullyContiguous | LayoutKind::LayerSeparate => Some(block_bytes),
        }
    }
}

impl From<LayoutKind> for LayoutType {
    fn from(kind: LayoutKind) -> Self {
        match kind {
            LayoutKind::FullyContiguous => LayoutType::FullyContiguous,
            LayoutKind::Paged => LayoutType::Paged,
            LayoutKind::LayerSeparate => LayoutType::LayerSeparate { outer_contiguous: false },
        }
    }
}

/// How much a tier holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Capacity {
    /// Not stated: the manager takes what fits the machine, and says how much that is.
    #[default]
    Default,
    /// So many blocks; 0 switches the tier off.
    Blocks(usize),
    /// So many bytes, rounded down to whole blocks; 0 switches the tier off.
    Bytes(u64),
}

impl Capacity {
    /// Whether the tier is switched off.
    pub fn is_off(self) -> bool {
        matches!(self, Capacity::Blocks(0) | Capacity::Bytes(0))
    }

    /// The blocks of `slot_bytes` bytes each; `None` when the capacity is not stated (or
    /// `slot_bytes` is 0).
    pub fn blocks(self, slot_bytes: usize) -> Option<usize> {
        match self {
            Capacity::Default => None,
            Capacity::Blocks(blocks) => Some(blocks),
            Capacity::Bytes(bytes) => usize::try_from(bytes).ok()?.checked_div(slot_bytes),
        }
    }
}

/// One tier.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TierConfig {
    /// How much it holds.
    pub capacity: Capacity,
    /// How its blocks lie.
    pub layout: LayoutKind,
    /// What leaves it when it is full; the common policy when not stated.
    pub eviction: Option<EvictionKind>,
    /// Whether its memory is committed at start, in parallel, rather than at first touch.
    pub prefault: bool,
    /// Whether its memory is asked for in huge pages. Drives and copies gain by it; on a fragmented
    /// machine the kernel may compact memory for minutes to find them.
    pub huge_pages: bool,
}

impl TierConfig {
    /// The defaults of `tier`: contiguous on the device, paged everywhere below, where blocks
    /// meet I/O.
    pub fn of(tier: Tier) -> Self {
        let layout = match tier {
            Tier::Device => LayoutKind::FullyContiguous,
            Tier::Host | Tier::Disk | Tier::Remote => LayoutKind::Paged,
        };
        Self {
            capacity: Capacity::Default,
            layout,
            eviction: None,
            prefault: false,
            huge_pages: false,
        }
    }
}
