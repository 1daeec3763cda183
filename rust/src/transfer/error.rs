//! Why a block did not arrive.

use crate::{config::Tier, layout::LayoutError, storage::StorageError};

/// Errors of moving blocks. Cheap to clone: one cause can fail many blocks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The caller gave it up.
    #[error("the transfer was cancelled")]
    Cancelled,
    /// The deadline passed before the block had arrived.
    #[error("the deadline passed before the block had arrived; allow more time or recompute it")]
    DeadlineExceeded,
    /// The bytes are not those that were sealed.
    #[error("{tier} block {block_id}: bytes fail verification; the block is quarantined")]
    VerificationFailed {
        /// Tier the bytes came from.
        tier: Tier,
        /// Its slot.
        block_id: u32,
    },
    /// The target tier has no slot to give.
    #[error("{tier} tier: no room, every block is in use; release blocks or enlarge the tier")]
    NoRoom {
        /// The tier.
        tier: Tier,
    },
    /// The block is no longer what its key says: its tier was reset, or it failed verification.
    #[error("{tier} block {block_id} was forgotten by a reset or a failed verification")]
    Stale {
        /// The tier.
        tier: Tier,
        /// Its slot.
        block_id: u32,
    },
    /// The engine's queue is full.
    #[error("{engine}: {queued} blocks queued of at most {limit}; slow down or raise the limit")]
    QueueFull {
        /// Name of the engine.
        engine: String,
        /// Blocks in the queue.
        queued: usize,
        /// The bound.
        limit: usize,
    },
    /// The engine does not keep its contract.
    #[error("{engine}: reported {found} sums for a block of {expected} tiles; correct the engine")]
    WrongSums {
        /// Name of the engine.
        engine: String,
        /// Sums it reported.
        found: usize,
        /// Tiles of a block.
        expected: usize,
    },
    /// The engine ended before the block was copied.
    #[error("the transfer engine was shut down before the block was copied")]
    EngineStopped,
    /// No route between the two tiers is configured.
    #[error("no route from {from} to {to}: {reason}")]
    NoRoute {
        /// Source tier.
        from: Tier,
        /// Target tier.
        to: Tier,
        /// What is missing.
        reason: &'static str,
    },
    /// The two memories do not hold the same kind of block.
    #[error("the two layouts do not match")]
    Layout(#[from] LayoutError),
    /// A block is of another tier, or of another manager.
    #[error("the block belongs to another pool than that of this {tier} tier; use its own manager")]
    Foreign {
        /// The tier that was asked.
        tier: Tier,
    },
    /// A memory could not be reached.
    #[error("a memory of the transfer is not accessible")]
    Storage(#[from] StorageError),
    /// The operating system gave no thread.
    #[error("cannot start a thread for {engine}: {reason}")]
    Thread {
        /// Name of the engine.
        engine: String,
        /// The system's words.
        reason: String,
    },
    /// A fault decorator failed the copy on purpose.
    #[error("injected fault (seed {seed}, copy {copy})")]
    Injected {
        /// Seed of the decorator.
        seed: u64,
        /// Running number of the copy.
        copy: u64,
    },
}
