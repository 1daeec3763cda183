//! The handle that keeps nothing alive: neither blocks nor their pool.

use std::fmt;

use super::{
    ImmutableSlots,
    shared::{SlotPool, WeakPool},
    state::Ids,
};
use crate::eviction::SlotId;

/// Blocks somebody may want again, without keeping them.
#[derive(Clone)]
pub struct WeakSlots {
    pool: WeakPool,
    /// Each with the epoch in which it held the block.
    slots: Vec<(SlotId, u64)>,
}

impl WeakSlots {
    pub(super) fn new(pool: &SlotPool, ids: &[SlotId]) -> Self {
        let slots = pool.with(|state| ids.iter().map(|&id| (id, state.epoch(id))).collect());
        Self { pool: pool.downgrade(), slots }
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether it stands for none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Pins the block at `position` if its slot still holds it: not once it was evicted, freed,
    /// quarantined or forgotten by a reset, also when an equal block came into the same slot.
    /// Counts as no access: whoever looks after a block has not asked for it.
    pub fn upgrade(&self, position: usize) -> Option<ImmutableSlots> {
        let &(id, epoch) = self.slots.get(position)?;
        let pool = self.pool.upgrade()?;
        let alive = pool.with(|state| state.upgrade(id, epoch));
        alive.then(|| ImmutableSlots::new(pool, Ids::from_slice(&[id])))
    }
}

impl fmt::Debug for WeakSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.slots.iter().map(|slot| slot.0)).finish()
    }
}
