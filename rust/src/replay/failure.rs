//! Why a replay with bytes was refused or ended early.

use std::path::PathBuf;

use super::{Capacity, ReplayCancelled};
use crate::manager::{BlockError, BlockPoolError, ManagerError};

/// A replay with bytes that was refused or ended early.
///
/// A block that fails its verification is no error but a finding of the replay: see
/// [`ByteReplay::verify_failures`](super::ByteReplay::verify_failures).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A share of the trace's unique blocks that is less than one block.
    #[error(
        "{option}: {share} of the {unique_blocks} unique blocks of trace {trace:?} is less than \
         one block; give a number of blocks, {option} 1 say"
    )]
    NoBlocks {
        /// The tier's option.
        option: &'static str,
        /// The share, as asked for or by default.
        share: Capacity,
        /// Different blocks in the trace.
        unique_blocks: u32,
        /// The trace.
        trace: String,
    },
    /// No tier for requests to be served from.
    #[error("device_blocks: 0 leaves no tier to serve requests from; give at least 1")]
    NoDevice,
    /// A disk tier of some size, and nowhere to put it.
    #[error("disk_blocks: there is no disk tier; name its directory with disk")]
    NoDirectory,
    /// A directory whose name cannot be told.
    #[error("disk: {dir:?} is no UTF-8; name another directory")]
    Directory {
        /// The directory.
        dir: PathBuf,
    },
    /// A size that no block has.
    #[error("bytes_per_block: {bytes} is no size of a block; give a number from 1 to {most}")]
    BlockSize {
        /// Bytes asked for.
        bytes: u64,
        /// Most bytes of a block.
        most: u64,
    },
    /// A size with too large a prime factor.
    #[error(
        "bytes_per_block: {bytes} cannot be cut into equal tokens and layers of a usual size; \
         give {near}"
    )]
    BlockShape {
        /// Bytes asked for.
        bytes: u64,
        /// The next size that works.
        near: u64,
    },
    /// There is no such manager.
    #[error(transparent)]
    Manager(#[from] ManagerError),
    /// A pool refused: somebody else uses it.
    #[error(transparent)]
    Pool(#[from] BlockPoolError),
    /// The bytes of a block cannot be reached.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The progress callback asked to stop.
    #[error(transparent)]
    Cancelled(#[from] ReplayCancelled),
}
