//! One tier in full: slots, bytes, seals.
#![allow(unsafe_code)]

use std::fmt;

use super::{drives::OnDrives, fingerprint::CurrentFingerprint, seals::SealTable};
use crate::{
    config::Tier,
    eviction::SlotId,
    layout::BlockLayout,
    metrics::PoolMetrics,
    pool::{ImmutableSlots, MutableSlots, PoolError, Registration, SlotPool},
    seal::{Fingerprint, Seal, SealRoot, SealTiling},
    storage::{StorageError, StorageType, disk::DiskError},
    sync::Arc,
    tokens::Key,
    transfer::{BlockMemory, BlockPlace, TransferError, disk::BegunReset, sum_block},
};

/// A tier: the lifecycle of its slots, the bytes in them, and what proves them.
///
/// Invariant: pool and place have the same number of slots.
pub struct TierBlocks {
    pub(super) pool: SlotPool,
    pub(super) place: BlockPlace,
    pub(super) fingerprint: CurrentFingerprint,
    pub(super) seals: Option<SealTable>,
    pub(super) on_drives: Option<OnDrives>,
}

impl TierBlocks {
    /// A tier whose blocks are written by the engine: nothing is sealed there.
    pub(crate) fn unsealed(
        pool: SlotPool,
        memory: Arc<BlockMemory>,
        fingerprint: CurrentFingerprint,
    ) -> Self {
        Self { pool, place: memory.into(), fingerprint, seals: None, on_drives: None }
    }

    /// A tier whose blocks are sealed as they arrive, from above or from whoever fills them.
    pub(crate) fn sealed(
        pool: SlotPool,
        memory: Arc<BlockMemory>,
        fingerprint: CurrentFingerprint,
    ) -> Self {
        let tiles = memory.tiling().tiles();
        let seals = Some(SealTable::new(pool.capacity(), tiles));
        Self { pool, place: memory.into(), fingerprint, seals, on_drives: None }
    }

    /// Which tier.
    pub fn tier(&self) -> Tier {
        self.pool.tier()
    }

    /// The lifecycle of its slots.
    pub fn pool(&self) -> &SlotPool {
        &self.pool
    }

    /// Where its slots lie.
    pub fn place(&self) -> &BlockPlace {
        &self.place
    }

    /// Shape of its blocks, and where each lies.
    pub fn layout(&self) -> &BlockLayout {
        self.place.layout()
    }

    /// How its blocks are cut into tiles.
    pub fn tiling(&self) -> SealTiling {
        self.place.tiling()
    }

    /// The bytes of its slots.
    ///
    /// # Errors
    /// [`StorageError::NotAccessible`] where they are not in memory.
    pub fn memory(&self) -> Result<&Arc<BlockMemory>, StorageError> {
        let storage = StorageType::Disk(0);
        self.place.memory().ok_or(StorageError::NotAccessible { storage })
    }

    /// Memory that the CPU can reach.
    fn reachable(&self) -> Result<&Arc<BlockMemory>, StorageError> {
        let memory = self.memory()?;
        memory.check_accessible().map(|()| memory)
    }

    /// What it counts. Blocks of a drive are hits when they were loaded and verified.
    pub(crate) fn metrics(&self) -> PoolMetrics {
        let mut metrics = self.pool.metrics();
        if let Some(disk) = self.disk() {
            let asked = metrics.hits + metrics.misses;
            metrics.hits = disk.drives().iter().map(|drive| drive.hits()).sum();
            metrics.misses = asked.saturating_sub(metrics.hits);
        }
        metrics
    }

    /// Forgets every block of the tier, for good; returns how many are still held.
    ///
    /// # Errors
    /// What the drive says, where that could not be made to last.
    pub(crate) fn reset(&self) -> Result<usize, DiskError> {
        let (held, begun) = self.begin_reset();
        begun.map_or(Ok(()), BegunReset::noted)?;
        Ok(held)
    }

    /// Forgets every block of the tier; returns how many are still held, and what is to be waited for
    /// until that lasts.
    pub(crate) fn begin_reset(&self) -> (usize, Option<BegunReset>) {
        let held = self.pool.reset();
        (held, self.disk().map(|disk| disk.begin_reset()))
    }

    /// Whether what is stored here now is stored after every reset.
    pub(super) fn knows_of_resets(&self) -> bool {
        self.disk().is_none_or(|disk| disk.knows_of_resets())
    }

    /// What decides how the bytes are read now.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint.get()
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
            && let Ok(memory) = self.reachable()
        {
            for (&id, registration) in slots.ids().iter().zip(registrations) {
                // SAFETY: `slots` is the one owner of the slot, and the memory is accessible.
                if let Ok(sums) = unsafe { sum_block(memory, id) } {
                    self.seal(id, registration.key, sums);
                }
            }
        }
        self.pool.register(slots, registrations)
    }

    /// Seals `slot`, which the caller owns, as the block `key` with these tile sums.
    pub(super) fn seal(&self, slot: SlotId, key: Key, sums: Box<[u64]>) {
        if let Some(seals) = &self.seals {
            seals.put(slot, &Seal::new(&key.to_bytes(), &self.fingerprint(), sums));
        }
    }

    /// Keeps a root that was found; the slot is the caller's own.
    pub(super) fn put_root(&self, slot: SlotId, root: SealRoot) {
        if let Some(seals) = &self.seals {
            seals.put_root(slot, root);
        }
    }

    /// Whether bytes with these tile sums are the block `key` that was sealed in `slot`, which the
    /// caller holds. A tier without seals has nothing to compare with.
    pub(super) fn proves(&self, slot: SlotId, key: Key, sums: &[u64]) -> bool {
        self.seals
            .as_ref()
            .is_none_or(|seals| seals.proves(slot, &key.to_bytes(), &self.fingerprint(), sums))
    }

    /// The tile sums that the block `key` in `slot`, which the caller holds, was sealed with when it
    /// came here; `None` where it was not.
    pub(super) fn sealed_sums(&self, slot: SlotId, key: Key) -> Option<Box<[u64]>> {
        self.seals.as_ref()?.sums(slot, &key.to_bytes(), &self.fingerprint())
    }

    /// Re-reads the bytes of held blocks where they lie; per block, whether they are what was
    /// sealed, which those of other weights than the present ones are not. Costs a pass over the
    /// bytes on the calling thread.
    ///
    /// # Errors
    /// [`TransferError::Foreign`] for blocks of another tier, [`TransferError::Storage`] where the CPU
    /// cannot reach the bytes.
    pub fn verify(&self, blocks: &ImmutableSlots) -> Result<Vec<bool>, TransferError> {
        let foreign = |_| TransferError::Foreign { tier: self.tier() };
        self.check_owner(blocks).map_err(foreign)?;
        let memory = self.reachable()?;
        let registrations = blocks.registrations();
        let pairs = blocks.ids().iter().zip(registrations);
        pairs
            .map(|(&id, registration)| {
                // SAFETY: the block of this tier is held, so nobody writes its slot; the memory is
                // accessible.
                let sums = unsafe { sum_block(memory, id) }?;
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
        let layout = self.layout();
        let memory = self.reachable()?;
        if !slots.belongs_to(&self.pool) {
            let reason = "the slots belong to another pool";
            return Err(TransferError::NoRoute { from: self.tier(), to: self.tier(), reason });
        }
        for &id in slots.ids() {
            for span in layout.spans(id as usize, 0..layout.num_layers())? {
                // SAFETY: the slot is owned mutably, the span is inside its memory, which the CPU
                // can reach.
                unsafe { std::ptr::write_bytes(memory.address(span), 0, span.len) };
            }
        }
        Ok(())
    }

    /// Tests quarantined slots with two patterns and puts those that hold them back into service, on
    /// the calling thread. Returns (returned, still quarantined); memory that the CPU cannot reach
    /// is not tested, and a slot that failed twice stays out of use. Slots on a drive are tested
    /// without being asked for, in time.
    pub fn scrub(&self) -> (usize, usize) {
        let holds = |slot: &MutableSlots| match (&self.place, self.reachable()) {
            (_, Ok(memory)) => holds_patterns(memory, slot),
            (BlockPlace::Disk(disk), _) => slot.ids().iter().all(|&id| {
                let retired = self.mender().is_some_and(|mender| mender.is_retired(id));
                !retired && disk.holds_patterns(id)
            }),
            _ => false,
        };
        let quarantined = self.pool.take_quarantined();
        let (mut good, mut bad) = (0, 0);
        for slot in quarantined.into_singles() {
            if holds(&slot) {
                good += 1;
                if let Some(mender) = self.mender() {
                    slot.ids().iter().for_each(|&id| mender.returned(id));
                }
            } else {
                bad += 1;
                slot.quarantine();
            }
        }
        (good, bad)
    }
}

fn holds_patterns(memory: &BlockMemory, slot: &MutableSlots) -> bool {
    let layout = memory.layout();
    slot.ids().iter().all(|&id| {
        let Ok(spans) = layout.spans(id as usize, 0..layout.num_layers()) else { return false };
        spans.into_iter().all(|span| {
            // SAFETY: the slot is owned mutably, the span is inside its memory, which is
            // accessible.
            let bytes = unsafe { std::slice::from_raw_parts_mut(memory.address(span), span.len) };
            [0x55_u8, 0xaa].into_iter().all(|pattern| {
                bytes.fill(pattern);
                std::hint::black_box(&mut *bytes).iter().all(|&byte| byte == pattern)
            })
        })
    })
}

impl fmt::Debug for TierBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierBlocks")
            .field("pool", &self.pool)
            .field("place", &self.place)
            .field("sealed", &self.seals.is_some())
            .finish_non_exhaustive()
    }
}
