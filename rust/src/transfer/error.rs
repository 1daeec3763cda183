//! Why a block did not arrive.

use crate::{
    config::Tier,
    io::IoError,
    layout::LayoutError,
    storage::{StorageError, disk::DiskError},
    tokens::SequenceHash,
};

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
    /// The write budget of its drive is used up, and the block was not offered before.
    #[error(
        "{tier} tier: the write budget of the block's drive is used up; offered again it is \
         written, or raise disk.write_bytes_per_day"
    )]
    Declined {
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
    /// The engine cannot copy between such places.
    #[error("{engine}: does not copy from {from} to {to}; give that route an engine of its own")]
    NotServed {
        /// Name of the engine.
        engine: String,
        /// What is read.
        from: &'static str,
        /// What is written.
        to: &'static str,
    },
    /// The block's name is too short to be kept beyond this process.
    #[error("{key}: a 64-bit hash cannot name bytes on a drive; give hashes of 128 bits")]
    Refused {
        /// Its hash.
        key: SequenceHash,
    },
    /// The drive, or the directory on it.
    #[error(transparent)]
    Disk(DiskError),
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

impl TransferError {
    /// Whether the block that was read is lost, whoever tries again.
    pub(crate) fn blames_source(&self) -> bool {
        matches!(self, Self::Disk(DiskError::Io(IoError::Device { .. } | IoError::Short { .. })))
    }

    /// Whether it speaks against the slot that was written.
    pub(crate) fn blames_target(&self) -> bool {
        matches!(self, Self::Disk(DiskError::Io(IoError::Device { .. })))
    }

    /// Whether there was no room for the slot that was to be written.
    pub(crate) fn lacks_room(&self) -> bool {
        matches!(
            self,
            Self::Disk(DiskError::Io(IoError::NoSpace { .. }) | DiskError::LimitReached { .. })
        )
    }
}

impl From<DiskError> for TransferError {
    fn from(error: DiskError) -> Self {
        match error {
            DiskError::Io(IoError::Cancelled { .. }) => Self::Cancelled,
            DiskError::Io(IoError::Expired { .. }) => Self::DeadlineExceeded,
            DiskError::Io(IoError::Stopped) => Self::EngineStopped,
            error => Self::Disk(error),
        }
    }
}
