//! One tier in full: slots, bytes, seals.
#![allow(unsafe_code)]

use std::fmt;

use super::seals::SealTable;
use crate::{
    config::Tier,
    eviction::SlotId,
    pool::{ImmutableSlots, MutableSlots, PoolError, Registration, SlotPool},
    seal::{Fingerprint, Seal},
    sync::Arc,
    tokens::Key,
    transfer::{BlockMemory, TransferError, sum_block},
};

/// A tier: the lifecycle of its slots, the bytes in them, and what proves them.
///
/// Invariant: pool and memory have the same number of slots.
pub struct TierBlocks {
    pool: SlotPool,
    memory: Arc<BlockMemory>,
    fingerprint: Fingerprint,
    seals: Option<SealTable>,
}

impl TierBlocks {
    /// A tier whose blocks are written by the engine: nothing is sealed there.
    pub(crate) fn unsealed(
        pool: SlotPool,
        memory: Arc<BlockMemory>,
        fingerprint: Fingerprint,
    ) -> Self {
        Self { pool, memory, fingerprint, seals: None }
    }

    /// A tier whose blocks are sealed as they arrive, from above or from whoever fills them.
    pub(crate) fn sealed(
        pool: SlotPool,
        memory: Arc<BlockMemory>,
        fingerprint: Fingerprint,
    ) -> Self {
        let tiles = memory.tiling().tiles();
        let seals = Some(SealTable::new(pool.capacity(), tiles));
        Self { pool, memory, fingerprint, seals }
    }

    /// Which tier.
    pub fn tier(&self) -> Tier {
        self.pool.tier()
    }

    /// The lifecycle of its slots.
    pub fn pool(&self) -> &SlotPool {
        &self.pool
    }

    /// The bytes of its slots.
    pub fn memory(&self) -> &Arc<BlockMemory> {
        &self.memory
    }

    /// What decides how the bytes are read.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// Whether `blocks` are of this tier.
    ///
    /// # Errors
    /// [`PoolError::ForeignHandle`].
    pub(crate) fn check_owner(&self, blocks: &ImmutableSlots) -> Result<(), PoolError> {
        self.own(blocks.belongs_to(&self.pool))
    }

    /// Whether `slots` are of this tier.
    ///
    /// # Errors
    /// [`PoolError::ForeignHandle`].
    pub(crate) fn check_target(&self, slots: &MutableSlots) -> Result<(), PoolError> {
        self.own(slots.belongs_to(&self.pool))
    }

    fn own(&self, own: bool) -> Result<(), PoolError> {
        if own { Ok(()) } else { Err(PoolError::ForeignHandle { tier: self.tier() }) }
    }

    /// Registers blocks that their owner has filled. In a sealed tier this reads them once, on the
    /// calling thread, to seal them; memory that the CPU cannot reach stays unsealed, and a block
    /// without a seal is never handed up.
    ///
    /// # Errors
    /// As [`SlotPool::register`].
    pub(crate) fn register(
        &self,
        slots: MutableSlots,
        registrations: &[Registration],
    ) -> Result<ImmutableSlots, (PoolError, MutableSlots)> {
        if self.seals.is_some()
            && self.check_target(&slots).is_ok()
            && self.memory.check_accessible().is_ok()
        {
            for (&id, registration) in slots.ids().iter().zip(registrations) {
                // SAFETY: `slots` is the one owner of the slot, and the memory is accessible.
                if let Ok(sums) = unsafe { sum_block(&self.memory, id) } {
                    self.seal(id, registration.key, sums);
                }
            }
        }
        self.pool.register(slots, registrations)
    }

    /// Seals `slot`, which the caller owns, as the block `key` with these tile sums.
    pub(super) fn seal(&self, slot: SlotId, key: Key, sums: Box<[u64]>) {
        if let Some(seals) = &self.seals {
            seals.put(slot, &Seal::new(&identity(key), &self.fingerprint, sums));
        }
    }

    /// Whether bytes with these tile sums are the block `key` that was sealed in `slot`, which the
    /// caller holds. A tier without seals has nothing to compare with.
    pub(super) fn proves(&self, slot: SlotId, key: Key, sums: &[u64]) -> bool {
        self.seals.as_ref().is_none_or(|seals| {
            seals.get(slot).verify(&identity(key), &self.fingerprint, sums).is_ok()
        })
    }

    /// Re-reads the bytes of held blocks where they lie; per block, whether they are what was
    /// sealed. Costs a pass over the bytes on the calling thread.
    ///
    /// # Errors
    /// [`TransferError::Foreign`] for blocks of another tier, [`TransferError::Storage`] where the CPU
    /// cannot reach the bytes.
    pub fn verify(&self, blocks: &ImmutableSlots) -> Result<Vec<bool>, TransferError> {
        let foreign = |_| TransferError::Foreign { tier: self.tier() };
        self.check_owner(blocks).map_err(foreign)?;
        self.memory.check_accessible()?;
        let registrations = blocks.registrations();
        let pairs = blocks.ids().iter().zip(registrations);
        pairs
            .map(|(&id, registration)| {
                // SAFETY: the block of this tier is held, so nobody writes its slot; the memory is
                // accessible.
                let sums = unsafe { sum_block(&self.memory, id) }?;
                Ok(self.proves(id, registration.key, &sums))
            })
            .collect()
    }

    /// Fills slots with zeros, whatever was in them. Costs a pass over the bytes on the calling
    /// thread.
    ///
    /// # Errors
    /// [`TransferError`] when the slots are another tier's, or the CPU cannot reach the memory.
    pub fn wipe(&self, slots: &MutableSlots) -> Result<(), TransferError> {
        let layout = self.memory.layout();
        self.memory.check_accessible()?;
        if !slots.belongs_to(&self.pool) {
            let reason = "the slots belong to another pool";
            return Err(TransferError::NoRoute { from: self.tier(), to: self.tier(), reason });
        }
        for &id in slots.ids() {
            for span in layout.spans(id as usize, 0..layout.num_layers())? {
                // SAFETY: the slot is owned mutably, the span is inside its memory, which the CPU
                // can reach.
                unsafe { std::ptr::write_bytes(self.memory.address(span), 0, span.len) };
            }
        }
        Ok(())
    }

    /// Tests the memory of quarantined slots with two patterns and puts those that hold them back
    /// into service. Returns (returned, still quarantined); memory that the CPU cannot reach is
    /// not tested.
    pub fn scrub(&self) -> (usize, usize) {
        if self.memory.check_accessible().is_err() {
            return (0, self.pool.metrics().quarantined as usize);
        }
        let quarantined = self.pool.take_quarantined();
        let (mut good, mut bad) = (0, 0);
        for slot in quarantined.into_singles() {
            if self.holds_patterns(&slot) {
                good += 1;
            } else {
                bad += 1;
                slot.quarantine();
            }
        }
        (good, bad)
    }

    fn holds_patterns(&self, slot: &MutableSlots) -> bool {
        let layout = self.memory.layout();
        slot.ids().iter().all(|&id| {
            let Ok(spans) = layout.spans(id as usize, 0..layout.num_layers()) else { return false };
            spans.into_iter().all(|span| {
                // SAFETY: the slot is owned mutably, the span is inside its memory, which is
                // accessible.
                let bytes =
                    unsafe { std::slice::from_raw_parts_mut(self.memory.address(span), span.len) };
                [0x55_u8, 0xaa].into_iter().all(|pattern| {
                    bytes.fill(pattern);
                    std::hint::black_box(&mut *bytes).iter().all(|&byte| byte == pattern)
                })
            })
        })
    }
}

/// What a seal binds bytes to: the hash, then the group, little-endian.
fn identity(key: Key) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..16].copy_from_slice(&key.hash.as_bytes());
    bytes[16..].copy_from_slice(&key.group.to_le_bytes());
    bytes
}

impl fmt::Debug for TierBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierBlocks")
            .field("pool", &self.pool)
            .field("memory", &self.memory)
            .field("sealed", &self.seals.is_some())
            .finish_non_exhaustive()
    }
}
