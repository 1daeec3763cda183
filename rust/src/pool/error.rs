//! What can go wrong in a pool.

use crate::config::Tier;

/// Errors of a tier's pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// More slots were asked for than are free or evictable.
    #[error(
        "{tier} pool: {requested} blocks requested, {available} available of {capacity}; \
         release blocks or configure a larger tier"
    )]
    NotEnoughBlocksAvailable {
        /// The tier.
        tier: Tier,
        /// Blocks asked for.
        requested: usize,
        /// Free and inactive blocks.
        available: usize,
        /// Blocks of the tier.
        capacity: usize,
    },
    /// A batch of blocks and the batch that names them differ in length.
    #[error("{tier} pool: {blocks} blocks to register under {registrations} hashes; give one each")]
    LengthMismatch {
        /// The tier.
        tier: Tier,
        /// Blocks handed in.
        blocks: usize,
        /// Names handed in.
        registrations: usize,
    },
    /// The pool was reset after the blocks were allocated, so what they hold is of the past.
    #[error(
        "{tier} pool: the blocks were allocated before a reset (generation {allocated}, now \
         {current}); allocate and fill them again"
    )]
    Stale {
        /// The tier.
        tier: Tier,
        /// Generation in which the blocks were allocated.
        allocated: u64,
        /// Generation of the pool.
        current: u64,
    },
    /// The handles belong to another pool.
    #[error("{tier} pool: the blocks belong to another pool; use the pool that allocated them")]
    ForeignHandle {
        /// The tier that was asked.
        tier: Tier,
    },
    /// A capacity the pool cannot have.
    #[error("{tier} pool: capacity of {capacity} blocks; must be between 1 and {max}")]
    InvalidCapacity {
        /// The tier.
        tier: Tier,
        /// The capacity asked for: of one of its sections if that is 0.
        capacity: usize,
        /// The largest one.
        max: usize,
    },
    /// The books of so many slots do not fit into memory.
    #[error(
        "{tier} pool: no memory for the books of {capacity} blocks, about {bytes} bytes; configure \
         fewer blocks or larger ones"
    )]
    OutOfMemory {
        /// The tier.
        tier: Tier,
        /// The capacity asked for.
        capacity: usize,
        /// What that would take.
        bytes: usize,
    },
    /// The internal accounting does not add up.
    #[error("{tier} pool: self-check failed: {reason}")]
    SelfCheck {
        /// The tier.
        tier: Tier,
        /// What does not add up.
        reason: String,
    },
}
