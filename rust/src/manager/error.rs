//! What can go wrong with blocks, pools and managers.

use super::MutableBlock;
use crate::{
    config::{ConfigError, Tier},
    layout::LayoutError,
    pool::PoolError,
    storage::{StorageError, disk::DiskError},
    tokens::TokenError,
};

/// Errors of single blocks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// No such layer.
    #[error("layer: {layer} does not exist; the block has {num_layers} layers, 0 to {}", num_layers - 1)]
    InvalidLayerIndex {
        /// Layer asked for.
        layer: usize,
        /// Layers of the block.
        num_layers: usize,
    },
    /// No such outer index.
    #[error("outer: {outer} does not exist; a layer has {outer_dim}, 0 to {}", outer_dim - 1)]
    InvalidOuterIndex {
        /// Outer index asked for.
        outer: usize,
        /// Outer dimension of the block.
        outer_dim: usize,
    },
    /// The block has no bytes in this process.
    #[error("the block is logical: its bytes are with the workers; views are not available here")]
    ViewsNotAvailableOnLogicalBlocks,
    /// The bytes asked for are not one run.
    #[error("{what} is spread over several runs in this layout; take smaller views")]
    NotContiguous {
        /// What was asked for.
        what: &'static str,
    },
    /// The block is not being filled with tokens.
    #[error("the block has no token sequence; call init_sequence first")]
    NoSequence,
    /// The block lacks tokens.
    #[error("the block needs {remaining} more tokens before it can be committed")]
    NotFull {
        /// Tokens missing.
        remaining: usize,
    },
    /// The block is complete and takes no more tokens.
    #[error("the block is complete; its tokens can no longer change")]
    AlreadyComplete,
    /// The memory cannot be reached.
    #[error("the block's memory is not accessible")]
    StorageError(#[from] StorageError),
    /// The layout refuses.
    #[error("the block's layout refuses")]
    Layout(#[from] LayoutError),
    /// The tokens are refused.
    #[error("the block's tokens are refused")]
    Tokens(#[from] TokenError),
}

/// Errors of a pool of blocks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockPoolError {
    /// A block to be registered is not complete or has no sequence hash.
    #[error(
        "block {block_id}: not complete; commit its tokens, or mark_complete and give a hash, \
         before registering it"
    )]
    BlockNotComplete {
        /// Slot of the block.
        block_id: u32,
    },
    /// More blocks were asked for than are free or evictable: (requested, available).
    #[error("{0} blocks requested, {1} available; release blocks or configure a larger tier")]
    NotEnoughBlocksAvailable(usize, usize),
    /// The block belongs to another pool or to a time before a reset.
    #[error("block {block_id}: {reason}")]
    InvalidMutableBlock {
        /// Slot of the block.
        block_id: u32,
        /// What is wrong with it.
        reason: String,
    },
    /// The pool refuses to register the blocks.
    #[error("blocks cannot be registered")]
    FailedToRegisterBlock(#[source] PoolError),
    /// The manager was shut down.
    #[error("the block manager was shut down; make a new one")]
    ProgressEngineShutdown,
    /// Blocks come into this tier by being stored.
    #[error("{tier} tier: blocks come into it by offloading; register them in a faster tier")]
    StoredOnly {
        /// The tier.
        tier: Tier,
    },
    /// The drive refuses.
    #[error("the drive refuses")]
    Disk(#[from] DiskError),
    /// A single block refuses.
    #[error("a block refuses")]
    BlockError(#[from] BlockError),
    /// The pool's self-check failed, or another error of the lifecycle.
    #[error(transparent)]
    Pool(PoolError),
}

impl From<PoolError> for BlockPoolError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::NotEnoughBlocksAvailable { requested, available, .. } => {
                Self::NotEnoughBlocksAvailable(requested, available)
            }
            PoolError::LengthMismatch { .. } | PoolError::Stale { .. } => {
                Self::FailedToRegisterBlock(error)
            }
            other => Self::Pool(other),
        }
    }
}

/// A refused registration, with the blocks that were to be registered.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RegisterError {
    /// Why.
    #[source]
    pub error: BlockPoolError,
    /// The blocks, as they were.
    pub blocks: Vec<MutableBlock>,
}

impl From<RegisterError> for BlockPoolError {
    fn from(refused: RegisterError) -> Self {
        refused.error
    }
}

impl From<BlockPoolError> for ManagerError {
    fn from(error: BlockPoolError) -> Self {
        match error {
            BlockPoolError::ProgressEngineShutdown => Self::Shutdown,
            BlockPoolError::Pool(error) | BlockPoolError::FailedToRegisterBlock(error) => {
                Self::Pool(error)
            }
            BlockPoolError::Disk(source) => Self::Disk { source },
            error => Self::Blocks(error),
        }
    }
}

/// Why there is no manager, or why one refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A tier's layout cannot be.
    #[error("{tier} tier: the layout cannot be made")]
    Layout {
        /// The tier.
        tier: Tier,
        /// Why.
        source: LayoutError,
    },
    /// A tier's memory cannot be had.
    #[error("{tier} tier: no memory for {blocks} blocks")]
    Storage {
        /// The tier.
        tier: Tier,
        /// Blocks it was to have.
        blocks: usize,
        /// Why.
        source: StorageError,
    },
    /// The directory of the disk tier cannot be had, or not be written.
    #[error("disk tier: {source}")]
    Disk {
        /// Why.
        source: DiskError,
    },
    /// A tier's pool cannot be, or was given what is not its own.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A pool refuses blocks.
    #[error(transparent)]
    Blocks(BlockPoolError),
    /// The tier is not configured.
    #[error("there is no {tier} tier; configure one")]
    NoSuchTier {
        /// The tier.
        tier: Tier,
    },
    /// The manager was shut down.
    #[error("the block manager was shut down; make a new one")]
    Shutdown,
}

impl From<DiskError> for ManagerError {
    fn from(source: DiskError) -> Self {
        Self::Disk { source }
    }
}
