//! Slots of a drive that are out of use, and how they come back.
//!
//! * A slot that is to blame for a failure (its bytes were not those of its block, or the drive could
//!   not read or write them) is written with patterns and read back, on the store lane. If they hold
//!   it is in use again. If they do not although stores and loads elsewhere on the drive went well
//!   meanwhile, or when it fails again later, it is retired until the process ends.
//! * A slot for which the drive had no room is out of use too, so that blocks make way for others
//!   instead of finding no room again and again. That speaks not against it: it is tried when stores
//!   go well, ever more rarely while there is no room, and at once when nothing else is left.
//!
//! Each drive is judged by its own operations, and of each one slot is tested at a time; nobody waits
//! for it. All slots that wait are quarantined as far as the pool is concerned.
//!
//! Costs: a test of a suspect writes and reads it twice, one for room asks the file system; without
//! slots out of use, two atomic operations per store and one per load.

mod ward;

use self::ward::{Patient, Ward};
use super::TierBlocks;
use crate::{
    eviction::SlotId,
    pool::{ImmutableSlots, MutableSlots, Registration, SlotPool},
    sync::{Arc, Mutex},
    transfer::{
        TransferError,
        disk::{DiskBlocks, Tested},
    },
};

/// Who waits for slots.
type Listener = Arc<dyn Fn() + Send + Sync>;

/// Who sees to the slots of a tier that are out of use.
pub(super) struct Mender {
    pool: SlotPool,
    disk: Arc<DiskBlocks>,
    /// By drive.
    wards: Box<[Ward]>,
    /// Told when a slot has come back.
    listeners: Mutex<Vec<Listener>>,
}

impl Mender {
    pub(super) fn new(pool: SlotPool, disk: Arc<DiskBlocks>) -> Arc<Self> {
        let wards = pool.sections().iter().map(|_| Ward::default()).collect();
        Arc::new(Self { pool, disk, wards, listeners: Mutex::default() })
    }

    /// Has `listener` called whenever a slot has come back, without a lock of ours.
    fn when_mended(&self, listener: Listener) {
        self.listeners.lock().push(listener);
    }

    /// A slot has failed, which nobody can test before `held` is let go; it is quarantined then, or
    /// will be when its last reader goes.
    fn blame<T>(self: &Arc<Self>, slot: SlotId, held: T, let_go: impl FnOnce(T)) {
        let ward = self.ward(slot);
        if let Some(ward) = ward {
            ward.blame(slot);
        }
        let_go(held);
        if let Some(ward) = ward {
            self.test(ward);
        }
    }

    /// The drive has no room for a slot: out of use until it has.
    fn set_aside(&self, slots: MutableSlots) {
        let ids = slots.ids().to_vec();
        slots.quarantine();
        for slot in ids {
            if let Some(ward) = self.ward(slot) {
                ward.set_aside(slot);
            }
        }
    }

    /// A store into that slot went well: a good moment for a test.
    fn stored(self: &Arc<Self>, slot: SlotId) {
        if let Some(ward) = self.ward(slot).filter(|ward| ward.stored()) {
            self.test(ward);
        }
    }

    /// A load from that slot went well.
    fn loaded(&self, slot: SlotId) {
        if let Some(ward) = self.ward(slot) {
            ward.loaded();
        }
    }

    /// A store found no slot: whatever can come back should.
    fn wanted(self: &Arc<Self>) {
        for ward in self.wards.iter().filter(|ward| ward.waits()) {
            self.test(ward);
        }
    }

    /// A quarantined slot was found good by somebody else.
    pub(super) fn returned(&self, slot: SlotId) {
        if let Some(ward) = self.ward(slot) {
            ward.returned(slot);
        }
    }

    /// Whether a slot is out of use for good.
    pub(super) fn is_retired(&self, slot: SlotId) -> bool {
        self.ward(slot).is_some_and(|ward| ward.is_retired(slot))
    }

    /// That of the drive which a slot lies on.
    fn ward(&self, slot: SlotId) -> Option<&Ward> {
        self.wards.get(self.pool.section_of(slot)?)
    }

    /// Has the next slot of a ward tested, unless one is.
    fn test(self: &Arc<Self>, ward: &Ward) {
        let Some((patient, slot)) = ward.next(&self.pool) else { return };
        let mender = self.clone();
        let told = move |tested| mender.tested(patient, slot, tested);
        if patient.is_suspect() {
            self.disk.test(patient.slot, told);
        } else {
            self.disk.find_room(patient.slot, told);
        }
    }

    fn tested(self: &Arc<Self>, patient: Patient, slot: MutableSlots, tested: Tested) {
        // In use again, or as before, whatever is asked next.
        if tested == Tested::Holds {
            drop(slot);
        } else {
            slot.quarantine();
        }
        let Some(ward) = self.ward(patient.slot) else { return };
        if ward.settle(patient, tested) {
            self.test(ward);
        }
        if tested == Tested::Holds {
            self.tell();
        }
    }

    /// There are slots for who had none.
    fn tell(&self) {
        let listeners = self.listeners.lock().clone();
        for listener in &listeners {
            listener();
        }
    }
}

impl TierBlocks {
    /// A block whose bytes are not its own any more is out of use, here and after a restart. On a
    /// drive its slot comes back when it proves sound.
    pub(super) fn condemn(&self, block: ImmutableSlots) {
        // Held until its record is erased, so that the slot is nobody else's by then.
        let held = block.clone();
        block.quarantine();
        let Some((disk, mender)) = self.disk().zip(self.mender()) else { return };
        for block in held.into_singles() {
            let (slot, mender) = (block.ids()[0], mender.clone());
            disk.erase(slot, Box::new(Erased { block: Some(block), mender }));
        }
    }

    /// A slot that a store failed to fill: free again, unless it is to blame or lacks room. Whether
    /// the block may find room in another: in one that has some already.
    pub(super) fn missed(
        &self,
        slots: MutableSlots,
        block: &Registration,
        error: &TransferError,
    ) -> bool {
        let Some((disk, mender)) = self.disk().zip(self.mender()) else { return false };
        if error.lacks_room() {
            // Where even a slot with room of its own cannot be written another would fare no
            // better, and cost the block that is in it.
            let without = slots.ids().iter().all(|&id| !disk.has_room(id));
            for &id in slots.ids() {
                self.refund(id, block);
            }
            mender.set_aside(slots);
            return without;
        }
        if error.blames_target() {
            for slot in slots.into_singles() {
                mender.blame(slot.ids()[0], slot, MutableSlots::quarantine);
            }
        }
        false
    }

    /// Has `call` called, on a thread of the drive's, whenever a slot has come back.
    pub(super) fn when_mended(&self, call: impl Fn() + Send + Sync + 'static) {
        if let Some(mender) = self.mender() {
            mender.when_mended(Arc::new(call));
        }
    }

    /// Drives that took no stores may take them now.
    pub(super) fn reopened(&self) {
        if let Some(mender) = self.mender() {
            mender.tell();
        }
    }

    /// A store into that slot has arrived.
    pub(super) fn stored(&self, slot: SlotId) {
        if let Some(mender) = self.mender() {
            mender.stored(slot);
        }
    }

    /// A load from that slot has arrived.
    pub(super) fn loaded(&self, slot: SlotId) {
        if let Some(mender) = self.mender() {
            mender.loaded(slot);
        }
    }

    /// A store found too few slots.
    pub(super) fn wanted(&self) {
        if let Some(mender) = self.mender() {
            mender.wanted();
        }
    }
}

/// A condemned block whose record has been erased, or cannot be now, when this is dropped.
struct Erased {
    block: Option<ImmutableSlots>,
    mender: Arc<Mender>,
}

impl Drop for Erased {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.mender.blame(block.ids()[0], block, drop);
        }
    }
}
