//! A tier whose slots lie on drives.
//!
//! A block's drive follows from its name; what may be written there, from its budget; and a slot that
//! fails is seen to. Everything else is as in memory.

use std::iter::{repeat, repeat_with};

use super::{
    Admission, TierBlocks, fingerprint::CurrentFingerprint, mend::Mender, seals::SealTable,
};
use crate::{
    eviction::SlotId,
    io::Lane,
    metrics::DriveMetrics,
    pool::{MutableSlots, PoolError, Registration, SlotPool},
    storage::disk::DiskError,
    sync::Arc,
    tokens::Key,
    transfer::{
        TransferError,
        disk::{DiskBlocks, RecoveredSlot},
    },
};

/// What such a tier has besides.
pub(super) struct OnDrives {
    /// Where they may write only so much.
    admission: Option<Admission>,
    /// Who sees to slots that are out of use.
    mender: Arc<Mender>,
}

impl TierBlocks {
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
        let mender = Mender::new(pool.clone(), disk.clone());
        let on_drives = Some(OnDrives { admission, mender });
        let tier = Self { pool, place: disk.into(), fingerprint, seals, on_drives };
        tier.register_found(slots, found)?;
        Ok(tier)
    }

    /// The drives, where its slots lie on some.
    pub(crate) fn disk(&self) -> Option<&Arc<DiskBlocks>> {
        self.place.disk()
    }

    fn admission(&self) -> Option<&Admission> {
        self.on_drives.as_ref()?.admission.as_ref()
    }

    /// Whether any of its blocks can be expected to come up when asked for.
    pub(super) fn serves(&self) -> bool {
        self.disk().is_none_or(|disk| disk.serves())
    }

    /// How many of its `slots`, from the first on, can be expected to come up when asked for.
    pub(super) fn serving(&self, slots: &[SlotId]) -> usize {
        self.disk().map_or(slots.len(), |disk| disk.serving(slots))
    }

    /// What its drives count; none where it is in memory.
    pub(crate) fn drives(&self) -> Vec<DriveMetrics> {
        let drives = self.disk().map_or(&[][..], |disk| disk.drives());
        let budgets = self.admission().map(Admission::budgets).unwrap_or_default();
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
        self.admission().is_some()
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
        let admitted: Vec<bool> = match self.admission() {
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
            if let (None, Some(admission)) = (&slot, self.admission()) {
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
            self.loaded(slot);
        }
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
        self.on_drives.as_ref().map(|on_drives| &on_drives.mender)
    }

    /// Books a write that was admitted and came to nothing.
    pub(super) fn refund(&self, slot: SlotId, block: &Registration) {
        let home = self.pool.section_of(slot);
        if let (Some(admission), Some(home), Some(disk)) = (self.admission(), home, self.disk()) {
            admission.refund(home, block, disk.bytes_per_store());
        }
    }
}
