//! One tier to its users.
#![allow(clippy::unused_async, reason = "the async face of verbs that never wait")]
#![allow(clippy::result_large_err, reason = "a refusal hands the blocks back")]

use std::fmt;

use super::{BlockPoolError, ImmutableBlock, MutableBlock, RegisterError};
use crate::{
    config::Tier,
    metrics::PoolMetrics,
    offload::{StoreEdge, TierBlocks},
    pool::{EvictionMode, ImmutableSlots, MutableSlots, PoolError, Registration},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    tokens::{Key, SequenceHash},
};

/// The blocks of one tier: allocate, register, match, evict. Clones share them.
///
/// Each verb that an engine awaits has a `_blocking` twin; both take the pool's lock for
/// microseconds and never wait for a copy.
#[derive(Clone)]
pub struct BlockPool {
    tier: Arc<TierBlocks>,
    /// The way down that registered blocks take by themselves.
    write_through: Option<StoreEdge>,
    closed: Arc<AtomicBool>,
}

impl BlockPool {
    pub(super) fn new(
        tier: Arc<TierBlocks>,
        write_through: Option<StoreEdge>,
        closed: Arc<AtomicBool>,
    ) -> Self {
        Self { tier, write_through, closed }
    }

    /// Which tier.
    pub fn tier(&self) -> Tier {
        self.tier.tier()
    }

    /// Slots, bytes and seals of the tier, for those who work with batches of slots.
    pub fn blocks(&self) -> &Arc<TierBlocks> {
        &self.tier
    }

    /// Blocks of the tier.
    pub fn total_blocks(&self) -> usize {
        self.tier.pool().capacity()
    }

    /// Blocks that an allocation can have now: free and inactive.
    pub fn available_blocks(&self) -> usize {
        self.tier.pool().available()
    }

    /// Share of the blocks that are in use, in `0.0..=1.0`.
    pub fn usage_rate(&self) -> f64 {
        1.0 - self.available_blocks() as f64 / self.total_blocks() as f64
    }

    /// Share of looked-up blocks that were found; 0 before the first lookup.
    pub fn cache_hit_rate(&self) -> f64 {
        self.status().hit_rate().unwrap_or(0.0)
    }

    /// Counts and gauges, all from one instant.
    pub fn status(&self) -> PoolMetrics {
        self.tier.metrics()
    }

    /// Name of the eviction policy.
    pub fn policy(&self) -> &'static str {
        self.tier.pool().policy()
    }

    /// Takes `count` blocks to write, all or none; inactive blocks are evicted for them.
    ///
    /// # Errors
    /// [`BlockPoolError::NotEnoughBlocksAvailable`], [`BlockPoolError::ProgressEngineShutdown`],
    /// [`BlockPoolError::StoredOnly`] in the disk tier.
    pub async fn allocate_blocks(&self, count: usize) -> Result<Vec<MutableBlock>, BlockPoolError> {
        self.allocate_blocks_blocking(count)
    }

    /// [`allocate_blocks`](Self::allocate_blocks) without a future.
    ///
    /// # Errors
    /// The same.
    pub fn allocate_blocks_blocking(
        &self,
        count: usize,
    ) -> Result<Vec<MutableBlock>, BlockPoolError> {
        let slots = self.allocate_slots(count)?;
        Ok(slots.into_singles().map(|slot| MutableBlock::new(self.tier.clone(), slot)).collect())
    }

    /// [`allocate_blocks`](Self::allocate_blocks) as one handle for all of them.
    ///
    /// # Errors
    /// The same.
    pub fn allocate_slots(&self, count: usize) -> Result<MutableSlots, BlockPoolError> {
        self.check_open()?;
        if self.tier.disk().is_some() {
            return Err(BlockPoolError::StoredOnly { tier: self.tier() });
        }
        Ok(self.tier.pool().allocate(count)?)
    }

    /// Registers blocks that were filled with tokens; from now on lookups find them. Below the
    /// device each block is read once to seal it.
    ///
    /// # Errors
    /// [`RegisterError`] with the blocks: [`BlockPoolError::BlockNotComplete`],
    /// [`BlockPoolError::InvalidMutableBlock`] for blocks of another pool,
    /// [`BlockPoolError::FailedToRegisterBlock`] after a reset.
    pub async fn register_blocks(
        &self,
        blocks: Vec<MutableBlock>,
    ) -> Result<Vec<ImmutableBlock>, RegisterError> {
        self.register_blocks_blocking(blocks)
    }

    /// [`register_blocks`](Self::register_blocks) without a future.
    ///
    /// # Errors
    /// The same.
    pub fn register_blocks_blocking(
        &self,
        blocks: Vec<MutableBlock>,
    ) -> Result<Vec<ImmutableBlock>, RegisterError> {
        let named: Result<Vec<_>, _> = blocks
            .iter()
            .map(|block| {
                let incomplete = BlockPoolError::BlockNotComplete { block_id: block.block_id() };
                block.registration().ok_or(incomplete)
            })
            .collect();
        match named {
            Ok(registrations) => self.register_blocks_as(blocks, &registrations),
            Err(error) => Err(RegisterError { error, blocks }),
        }
    }

    /// Registers blocks under names that the caller gives, which states that they are complete.
    ///
    /// # Errors
    /// As [`register_blocks`](Self::register_blocks), and
    /// [`BlockPoolError::FailedToRegisterBlock`] when blocks and names differ in number.
    pub fn register_blocks_as(
        &self,
        blocks: Vec<MutableBlock>,
        registrations: &[Registration],
    ) -> Result<Vec<ImmutableBlock>, RegisterError> {
        if let Err(error) = self.check_registrable(&blocks, registrations) {
            return Err(RegisterError { error, blocks });
        }
        let (slots, fillings): (Vec<_>, Vec<_>) =
            blocks.into_iter().map(MutableBlock::into_parts).unzip();
        let Some(slots) = MutableSlots::join(slots) else { return Ok(Vec::new()) };
        let held = self.register_slots(slots, registrations).map_err(|(error, slots)| {
            let blocks = slots.into_singles().zip(fillings).map(|(slot, filling)| {
                MutableBlock::with_filling(self.tier.clone(), slot, filling)
            });
            RegisterError { error, blocks: blocks.collect() }
        })?;
        Ok(self.singles(held))
    }

    fn check_registrable(
        &self,
        blocks: &[MutableBlock],
        registrations: &[Registration],
    ) -> Result<(), BlockPoolError> {
        self.check_open()?;
        if blocks.len() != registrations.len() {
            return Err(BlockPoolError::FailedToRegisterBlock(PoolError::LengthMismatch {
                tier: self.tier(),
                blocks: blocks.len(),
                registrations: registrations.len(),
            }));
        }
        let generation = self.tier.pool().generation();
        for block in blocks {
            self.check_own(block)?;
            if block.slot.generation() != generation {
                let reason =
                    "the pool was reset after it was allocated; allocate and fill it again";
                return Err(invalid(block, reason));
            }
        }
        Ok(())
    }

    fn check_own(&self, block: &MutableBlock) -> Result<(), BlockPoolError> {
        self.tier
            .check_target(&block.slot)
            .map_err(|_| invalid(block, "it belongs to another pool; use the one it came from"))
    }

    /// [`register_blocks_as`](Self::register_blocks_as) for one handle of many blocks.
    ///
    /// # Errors
    /// The same, with the handle.
    pub fn register_slots(
        &self,
        slots: MutableSlots,
        registrations: &[Registration],
    ) -> Result<ImmutableSlots, (BlockPoolError, MutableSlots)> {
        if let Err(error) = self.check_open() {
            return Err((error, slots));
        }
        let registered = self.tier.register(slots, registrations);
        let held = registered.map_err(|(error, slots)| (error.into(), slots))?;
        if let Some(edge) = &self.write_through {
            edge.offer(&held);
        }
        Ok(held)
    }

    /// The longest prefix of `hashes` that is registered here, held.
    ///
    /// # Errors
    /// [`BlockPoolError::ProgressEngineShutdown`].
    pub async fn match_sequence_hashes(
        &self,
        hashes: &[SequenceHash],
    ) -> Result<Vec<ImmutableBlock>, BlockPoolError> {
        self.match_sequence_hashes_blocking(hashes)
    }

    /// [`match_sequence_hashes`](Self::match_sequence_hashes) without a future.
    ///
    /// # Errors
    /// The same.
    pub fn match_sequence_hashes_blocking(
        &self,
        hashes: &[SequenceHash],
    ) -> Result<Vec<ImmutableBlock>, BlockPoolError> {
        Ok(self.singles(self.match_slots(&keys(hashes))?))
    }

    /// The longest prefix of `keys` that is registered here, as one handle.
    ///
    /// # Errors
    /// [`BlockPoolError::ProgressEngineShutdown`].
    pub fn match_slots(&self, keys: &[Key]) -> Result<ImmutableSlots, BlockPoolError> {
        self.check_open()?;
        Ok(self.tier.pool().match_prefix(keys))
    }

    /// Tells the policy that these blocks were used, the last first; returns how many are here.
    ///
    /// # Errors
    /// [`BlockPoolError::ProgressEngineShutdown`].
    pub async fn touch_blocks(&self, hashes: &[SequenceHash]) -> Result<usize, BlockPoolError> {
        self.touch_blocks_blocking(hashes)
    }

    /// [`touch_blocks`](Self::touch_blocks) without a future.
    ///
    /// # Errors
    /// The same.
    pub fn touch_blocks_blocking(&self, hashes: &[SequenceHash]) -> Result<usize, BlockPoolError> {
        self.check_open()?;
        Ok(self.tier.pool().touch(&keys(hashes)))
    }

    /// Forgets every block of this tier, and no other's; returns how many are still held. To
    /// forget blocks everywhere, use [`KvBlockManager::reset`](super::KvBlockManager::reset).
    ///
    /// # Errors
    /// [`BlockPoolError::ProgressEngineShutdown`].
    pub async fn reset(&self) -> Result<usize, BlockPoolError> {
        self.reset_blocking()
    }

    /// [`reset`](Self::reset) without a future.
    ///
    /// # Errors
    /// The same.
    pub fn reset_blocking(&self) -> Result<usize, BlockPoolError> {
        self.check_open()?;
        Ok(self.tier.reset()?)
    }

    /// Drops inactive blocks before they are in the way; returns how many.
    ///
    /// # Errors
    /// [`BlockPoolError::ProgressEngineShutdown`].
    pub async fn trigger_eviction(&self, mode: EvictionMode) -> Result<usize, BlockPoolError> {
        self.trigger_eviction_blocking(mode)
    }

    /// [`trigger_eviction`](Self::trigger_eviction) without a future.
    ///
    /// # Errors
    /// The same.
    pub fn trigger_eviction_blocking(&self, mode: EvictionMode) -> Result<usize, BlockPoolError> {
        self.check_open()?;
        Ok(self.tier.pool().trigger_eviction(mode))
    }

    /// Turns one handle of many blocks of this tier into many of one.
    ///
    /// # Errors
    /// [`BlockPoolError::Pool`] for blocks of another pool.
    pub fn single(&self, slots: ImmutableSlots) -> Result<Vec<ImmutableBlock>, BlockPoolError> {
        self.tier.check_owner(&slots)?;
        Ok(self.singles(slots))
    }

    /// Blocks of this tier, which the caller knows.
    fn singles(&self, slots: ImmutableSlots) -> Vec<ImmutableBlock> {
        let tier = &self.tier;
        slots.into_singles().map(|slot| ImmutableBlock::new(tier.clone(), slot)).collect()
    }

    /// Gives blocks back that were not needed: their slots are free again, which is what dropping
    /// the blocks does too.
    ///
    /// # Errors
    /// [`BlockPoolError::InvalidMutableBlock`] for blocks of another pool, which go back there.
    pub async fn add_blocks(&self, blocks: Vec<MutableBlock>) -> Result<(), BlockPoolError> {
        self.add_blocks_blocking(blocks)
    }

    /// [`add_blocks`](Self::add_blocks) without a future.
    ///
    /// # Errors
    /// The same.
    pub fn add_blocks_blocking(&self, blocks: Vec<MutableBlock>) -> Result<(), BlockPoolError> {
        let own = blocks.iter().try_for_each(|block| self.check_own(block));
        drop(blocks);
        own
    }

    fn check_open(&self) -> Result<(), BlockPoolError> {
        if self.closed.load(Ordering::Acquire) {
            Err(BlockPoolError::ProgressEngineShutdown)
        } else {
            Ok(())
        }
    }
}

fn invalid(block: &MutableBlock, reason: &str) -> BlockPoolError {
    BlockPoolError::InvalidMutableBlock { block_id: block.block_id(), reason: reason.to_owned() }
}

pub(super) fn keys(hashes: &[SequenceHash]) -> Vec<Key> {
    hashes.iter().copied().map(Key::from).collect()
}

impl fmt::Debug for BlockPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockPool").field("tier", &self.tier).finish_non_exhaustive()
    }
}
