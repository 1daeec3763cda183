//! What is to be copied, as data.
#![allow(unsafe_code)]

use super::{BlockMemory, BlockPlace, TransferError};
use crate::{eviction::SlotId, layout::LayoutError, pool::Registration, sync::Arc};

/// One block's way: a slot of the source to a slot of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPair {
    /// Slot that is read.
    pub from: SlotId,
    /// Slot that is written.
    pub to: SlotId,
}

/// What a target that outlives the process has to know of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLabel {
    /// Its name.
    pub registration: Registration,
    /// Generation of the target's pool that its slot was allocated in.
    pub generation: u64,
    /// What its bytes were sealed with when they came to the source, where they were.
    pub sums: Option<Box<[u64]>>,
}

/// Whole blocks to copy from one place to another.
#[derive(Clone, Debug)]
pub struct TransferPlan {
    from: BlockPlace,
    to: BlockPlace,
    pairs: Vec<BlockPair>,
    /// By target slot, in order of slots.
    labels: Arc<[(SlotId, BlockLabel)]>,
}

impl TransferPlan {
    /// A plan between two places that hold the same kind of block in whatever layouts.
    ///
    /// # Errors
    /// [`LayoutError`] when the blocks differ in shape or a slot is out of range.
    ///
    /// # Safety
    /// Whoever makes a plan keeps its slots for it: from the submission of a job until each pair
    /// is reported or the job is dropped, nobody writes a source slot, and nobody else touches a
    /// target slot, which is in no other pair.
    pub unsafe fn new(
        from: impl Into<BlockPlace>,
        to: impl Into<BlockPlace>,
        pairs: Vec<BlockPair>,
    ) -> Result<Self, LayoutError> {
        let (from, to) = (from.into(), to.into());
        from.layout().compatible_with(to.layout())?;
        for pair in &pairs {
            // Asking for no layers checks the block alone.
            from.layout().spans(pair.from as usize, 0..0)?;
            to.layout().spans(pair.to as usize, 0..0)?;
        }
        Ok(Self { from, to, pairs, labels: Arc::default() })
    }

    /// With the names of the blocks, one for each pair, in order: a drive wants them.
    #[must_use]
    pub fn labelled(mut self, labels: impl IntoIterator<Item = BlockLabel>) -> Self {
        let slots = self.pairs.iter().map(|pair| pair.to);
        let mut labels: Vec<_> = slots.zip(labels).collect();
        labels.sort_unstable_by_key(|(slot, _)| *slot);
        self.labels = labels.into();
        self
    }

    /// The same route with some of its pairs.
    pub(super) fn with_pairs(&self, pairs: Vec<BlockPair>) -> Self {
        Self { pairs, ..self.clone() }
    }

    /// Where it is read.
    pub fn from(&self) -> &BlockPlace {
        &self.from
    }

    /// Where it is written.
    pub fn to(&self) -> &BlockPlace {
        &self.to
    }

    /// Both sides, where both are memory.
    ///
    /// # Errors
    /// [`TransferError::NotServed`] in the name of `engine`.
    pub(super) fn memories(
        &self,
        engine: &str,
    ) -> Result<(&Arc<BlockMemory>, &Arc<BlockMemory>), TransferError> {
        match (&self.from, &self.to) {
            (BlockPlace::Memory(from), BlockPlace::Memory(to)) => Ok((from, to)),
            _ => Err(self.not_served(engine)),
        }
    }

    pub(super) fn not_served(&self, engine: &str) -> TransferError {
        TransferError::NotServed {
            engine: engine.to_owned(),
            from: self.from.kind(),
            to: self.to.kind(),
        }
    }

    /// The blocks, in the order of the transfer.
    pub fn pairs(&self) -> &[BlockPair] {
        &self.pairs
    }

    /// The name of the block that goes to a slot, if it was stated.
    pub fn label(&self, to: SlotId) -> Option<&BlockLabel> {
        let at = self.labels.binary_search_by_key(&to, |(slot, _)| *slot).ok()?;
        Some(&self.labels[at].1)
    }

    /// Payload bytes of the whole plan.
    pub fn bytes(&self) -> usize {
        self.pairs.len() * self.from.layout().block_bytes()
    }
}
