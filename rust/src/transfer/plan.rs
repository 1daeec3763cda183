//! What is to be copied, as data.
#![allow(unsafe_code)]

use super::BlockMemory;
use crate::{eviction::SlotId, layout::LayoutError, sync::Arc};

/// One block's way: a slot of the source memory to a slot of the target memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPair {
    /// Slot that is read.
    pub from: SlotId,
    /// Slot that is written.
    pub to: SlotId,
}

/// Whole blocks to copy from one memory to another.
#[derive(Clone, Debug)]
pub struct TransferPlan {
    from: Arc<BlockMemory>,
    to: Arc<BlockMemory>,
    pairs: Vec<BlockPair>,
}

impl TransferPlan {
    /// A plan between two memories that hold the same kind of block in whatever layouts.
    ///
    /// # Errors
    /// [`LayoutError`] when the blocks differ in shape or a slot is out of range.
    ///
    /// # Safety
    /// Whoever makes a plan keeps its slots for it: from the submission of a job until each pair
    /// is reported or the job is dropped, nobody writes a source slot, and nobody else touches a
    /// target slot, which is in no other pair.
    pub unsafe fn new(
        from: Arc<BlockMemory>,
        to: Arc<BlockMemory>,
        pairs: Vec<BlockPair>,
    ) -> Result<Self, LayoutError> {
        from.layout().compatible_with(to.layout())?;
        for pair in &pairs {
            // Asking for no layers checks the block alone.
            from.layout().spans(pair.from as usize, 0..0)?;
            to.layout().spans(pair.to as usize, 0..0)?;
        }
        Ok(Self { from, to, pairs })
    }

    /// The same route with some of its pairs.
    pub(super) fn with_pairs(&self, pairs: Vec<BlockPair>) -> Self {
        Self { from: self.from.clone(), to: self.to.clone(), pairs }
    }

    /// The memory that is read.
    pub fn from(&self) -> &Arc<BlockMemory> {
        &self.from
    }

    /// The memory that is written.
    pub fn to(&self) -> &Arc<BlockMemory> {
        &self.to
    }

    /// The blocks, in the order of the transfer.
    pub fn pairs(&self) -> &[BlockPair] {
        &self.pairs
    }

    /// Payload bytes of the whole plan.
    pub fn bytes(&self) -> usize {
        self.pairs.len() * self.from.layout().block_bytes()
    }
}
