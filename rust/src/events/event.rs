//! What happened to a block, as data.

use crate::{
    config::Tier,
    tokens::{EngineKey, Key, SequenceHash},
};

/// What happened to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// A free slot became somebody's to fill. It has no key yet.
    Allocated,
    /// The tier holds the first copy under this key: it can be found from now on.
    Registered,
    /// A registered block was asked for, found and is held by the caller.
    Matched,
    /// The tier holds no copy under this key any more, whatever the reason.
    Evicted,
}

/// One event about one block of one tier.
///
/// Sequence numbers count from 0 and belong to the manager, not to the tier or the kind. A number
/// that was skipped is an event that was dropped: whoever follows the stream to know what is
/// resident has to look at the pools again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockEvent {
    /// Place in the manager's one stream.
    pub sequence: u64,
    /// The tier it happened in.
    pub tier: Tier,
    /// The slot.
    pub block_id: u32,
    /// What the block is; `None` for a slot that was only allocated.
    pub key: Option<Key>,
    /// The block before it in its chain; `None` for the first, and where nobody stated it.
    pub parent: Option<SequenceHash>,
    /// The engine's own name of the block, where it has one.
    pub engine_key: Option<EngineKey>,
}

/// A tier forgot every key at once. Whatever of it was registered before is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierCleared {
    /// Place in the manager's one stream.
    pub sequence: u64,
    /// The tier.
    pub tier: Tier,
}

/// A block as a pool describes it, before the stream numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventBlock {
    /// The slot.
    pub block_id: u32,
    /// What the block is, once it has a key.
    pub key: Option<Key>,
    /// The block before it in its chain.
    pub parent: Option<SequenceHash>,
    /// The engine's own name of the block.
    pub engine_key: Option<EngineKey>,
}

impl EventBlock {
    /// A slot without a key.
    pub fn slot(block_id: u32) -> Self {
        Self { block_id, key: None, parent: None, engine_key: None }
    }

    /// A block with a key and nothing else known.
    pub fn keyed(block_id: u32, key: Key) -> Self {
        Self { key: Some(key), ..Self::slot(block_id) }
    }

    pub(super) fn numbered(self, sequence: u64, tier: Tier) -> BlockEvent {
        let EventBlock { block_id, key, parent, engine_key } = self;
        BlockEvent { sequence, tier, block_id, key, parent, engine_key }
    }
}
