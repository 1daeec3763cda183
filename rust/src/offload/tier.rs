//! One tier in full: slots, bytes, seals.
#![allow(unsafe_code)]

use std::{
    fmt,
    iter::{repeat, repeat_with},
};

use super::{Admission, fingerprint::CurrentFingerprint, mend::Mender, seals::SealTable};
use crate::{
    config::Tier,
    eviction::SlotId,
    io::Lane,
    layout::BlockLayout,
    metrics::{DriveMetrics, PoolMetrics},
    pool::{ImmutableSlots, MutableSlots, PoolError, Registration, SlotPool},
    seal::{Fingerprint, Seal, SealRoot, SealTiling},
    storage::{StorageError, StorageType, disk::DiskError},
    sync::Arc,
    tokens::Key,
    transfer::{
        BlockMemory, BlockPlace, TransferError,
        disk::{DiskBlocks, RecoveredSlot},
        sum_block,
    },
};

/// A tier: the lifecycle of its slots, the bytes in them, and what proves them.
///
/// Invariant: pool and place have the same number of slots.
pub struct TierBlocks {
    pool: SlotPool,
    place: BlockPlace,
    fingerprint: CurrentFingerprint,
    seals: Option<SealTable>,
    /// Where its drives may write only so much.
    admission: Option<Admission>,
    /// Where its slots lie on drives.
    mender: Option<Arc<Mender>>,
}

impl TierBlocks {
    /// A tier whose blocks are written by the engine: nothing is sealed there.
    pub(crate) fn unsealed(
        pool: SlotPool,
        memory: Arc<BlockMemory>,
        fingerprint: CurrentFingerprint,
    ) -> Self {
        let (admission, mender) = (None, None);
        Self { pool, place: memory.into(), fingerprint, seals: None, admission, mender }
    }

    /// A tier whose blocks are sealed as they arrive, from above or from whoever fills them.
    pub(crate) fn sealed(
        pool: SlotPool,
        memory: Arc<BlockMemory>,
        fingerprint: CurrentFingerprint,
    ) -> Self {
        let tiles = memory.tiling().tiles();
        let seals = Some(SealTable::new(pool.capacity(), tiles));
        let (admission, mender) = (None, None);
        Self { pool, place: memory.into(), fingerprint, seals, admission, mender }
    }

    /// A tier on drives, with the blocks that were found there: inactive, those used longest ago
    /// the first to go. Each is a candidate until a load has verified it.
    ///
    /// # Errors
    /// [`PoolError`], when `pool` is not a fresh one with a section for each drive.
    pub(crate) fn on_disk(
        pool: SlotPool,
        disk: Arc<DiskBlocks>,
        fingerprint: CurrentFingerprint,
        found: &[RecoveredSlot],
        admission: Option<Admission>,
    ) -> Result<Self, PoolError> {
        let seals = Some(SealTable::new(pool.capacity(), 0));
        let sections = found.iter().map_while(|found| pool.section_of(found.slot));
        let slots = pool.allocate_in(&sections.collect::<Vec<_>>()).into_iter().flatten();
        let slots = MutableSlots::join(slots).map_or_else(|| pool.allocate(0), Ok)?;
        if !slots.ids().iter().eq(found.iter().map(|found| &found.slot)) {
            return Err(PoolError::ForeignHandle { tier: pool.tier() });
        }
        let mender = Some(Mender::new(pool.clone(), disk.clone()));
        let tier = Self { pool, place: disk.into(), fingerprint, seals, admission, mender };
        tier.register_found(slots, found)?;
        Ok(tier)
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

    /// The drive, where its slots lie on one.
    pub(crate) fn disk(&self) -> Option<&Arc<DiskBlocks>> {
        self.place.disk()
    }

    /// Whether any of its blocks can be expected to come up when asked for.
    pub(super) fn serves(&self) -> bool {
        self.disk().is_none_or(|disk| disk.serves())
    }

    /// How many of its `slots`, from the first on, can be expected to come up when asked for.
    pub(super) fn serving(&self, slots: &[SlotId]) -> usize {
        self.disk().map_or(slots.len(), |disk| disk.serving(slots))
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

    /// What its drives count; none where it is in memory.
    pub(crate) fn drives(&self) -> Vec<DriveMetrics> {
        let drives = self.disk().map_or(&[][..], |disk| disk.drives());
        let budgets = self.admission.as_ref().map(Admission::budgets).unwrap_or_default();
        let budgets = budgets.into_iter().chain(repeat(None));
        let each = drives.iter().zip(budgets).map(|(drive, budget)| {
            let (written, hits) = (drive.written(), drive.hits());
            DriveMetrics {
                dir: drive.name().to_owned(),
                loads: drive.serves(Lane::Load),
                stores: drive.serves(Lane::Store),
                capacity: drive.capacity() as u64,
                used_bytes: drive.used(),
                written_bytes: written,
                hits,
                written_bytes_per_hit: (hits > 0).then(|| written as f64 / hits as f64),
                budget_left_bytes: budget.map(|budget| budget.left),
                declined: budget.map_or(0, |budget| budget.declined),
            }
        });
        each.collect()
    }

    /// Whether its drives may write only so much.
    pub(crate) fn has_write_budget(&self) -> bool {
        self.admission.is_some()
    }

    /// A slot for each of `blocks`, which are about to be copied here, or why there is none.
    pub(super) fn places_for(
        self: &Arc<Self>,
        blocks: &[Registration],
    ) -> Vec<Result<MutableSlots, TransferError>> {
        let tier = self.tier();
        let or_no_room = |slot: Option<_>| slot.ok_or(TransferError::NoRoom { tier });
        let Some(disk) = self.disk() else {
            let slots = self.pool.allocate_up_to(blocks.len()).into_singles().map(Some);
            return slots.chain(repeat_with(|| None)).take(blocks.len()).map(or_no_room).collect();
        };
        if !self.takes_stores() {
            return blocks.iter().map(|_| Err(DiskError::Unread.into())).collect();
        }
        let keys: Vec<Key> = blocks.iter().map(|block| block.key).collect();
        let homes = disk.homes(&keys);
        let bytes = disk.bytes_per_store();
        let admitted: Vec<bool> = match &self.admission {
            None => vec![true; blocks.len()],
            Some(admission) => {
                let each = homes.iter().zip(blocks);
                each.map(|(&home, block)| admission.admit(home, block, bytes)).collect()
            }
        };
        let wanted = homes.iter().zip(&admitted).filter(|(_, admitted)| **admitted);
        let wanted: Vec<usize> = wanted.map(|(&home, _)| home).collect();
        let slots = self.pool.allocate_in(&wanted);
        if slots.iter().any(Option::is_none) {
            self.wanted();
        }
        let mut slots = slots.into_iter();
        let each = homes.into_iter().zip(blocks).zip(admitted);
        each.map(|((home, block), admitted)| {
            if !admitted {
                return Err(TransferError::Declined { tier });
            }
            let slot = slots.next().flatten();
            if let (None, Some(admission)) = (&slot, &self.admission) {
                admission.refund(home, block, bytes);
            }
            or_no_room(slot)
        })
        .collect()
    }

    /// The bytes that were loaded from `slot` have been verified.
    pub(super) fn arrived(&self, slot: SlotId) {
        if let Some(disk) = self.disk() {
            disk.hit(slot);
        }
    }

    /// Forgets every block of the tier, for good; returns how many are still held.
    ///
    /// # Errors
    /// What the drive says, where that could not be made to last.
    pub(crate) fn reset(&self) -> Result<usize, DiskError> {
        let held = self.pool.reset();
        self.disk().map_or(Ok(()), |disk| disk.reset())?;
        Ok(held)
    }

    /// Slots whose new content is worth nothing, free again when whatever says otherwise is gone.
    pub(super) fn forget(&self, slots: MutableSlots) {
        if let Some(disk) = self.disk() {
            for slot in slots.into_singles() {
                disk.erase(slot.ids()[0], Box::new(slot));
            }
        }
    }

    /// Who sees to its slots that are out of use, where they lie on a drive.
    pub(super) fn mender(&self) -> Option<&Arc<Mender>> {
        self.mender.as_ref()
    }

    /// Books a write that was admitted and came to nothing for want of room.
    pub(super) fn refund(&self, slot: SlotId, block: &Registration) {
        let home = self.pool.section_of(slot);
        if let (Some(admission), Some(home), Some(disk)) = (&self.admission, home, self.disk()) {
            admission.refund(home, block, disk.bytes_per_store());
        }
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

    /// The tile sums that the one block of `source` was sealed with when it came here; `None` where
    /// it was not.
    pub(super) fn sealed_sums(&self, source: &ImmutableSlots) -> Option<Box<[u64]>> {
        let (seals, &slot) = (self.seals.as_ref()?, source.ids().first()?);
        let key = source.registrations().first()?.key;
        seals.sums(slot, &key.to_bytes(), &self.fingerprint())
    }

    /// Re-reads the bytes of held blocks where they lie; per block, whether they are what was
    /// sealed, which those of other weights than the present ones are not. Costs a pass over the bytes on the calling thread.
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
                let retired = self.mender.as_ref().is_some_and(|mender| mender.is_retired(id));
                !retired && disk.holds_patterns(id)
            }),
            _ => false,
        };
        let quarantined = self.pool.take_quarantined();
        let (mut good, mut bad) = (0, 0);
        for slot in quarantined.into_singles() {
            if holds(&slot) {
                good += 1;
                if let Some(mender) = &self.mender {
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
