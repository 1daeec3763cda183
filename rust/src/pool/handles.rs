//! The handles: what a caller holds is what it may do.
//!
//! Each handle stands for one or more slots of one pool and takes the lock once for all of them.

use std::{fmt, ops::Range};

use super::{
    Registration,
    shared::{SlotPool, WeakPool},
    state::Ids,
};
use crate::eviction::SlotId;

/// Slots with one owner, who may write them. Dropping it frees them.
#[must_use = "dropping it frees the slots"]
pub struct MutableSlots {
    pool: SlotPool,
    ids: Ids,
    generation: u64,
}

impl MutableSlots {
    pub(super) fn new(pool: SlotPool, ids: Ids, generation: u64) -> Self {
        Self { pool, ids, generation }
    }

    /// The pool the slots belong to.
    pub fn pool(&self) -> &SlotPool {
        &self.pool
    }

    /// Whether the slots are of this pool.
    pub fn belongs_to(&self, pool: &SlotPool) -> bool {
        self.pool.owns(pool)
    }

    /// The slot numbers, in order.
    pub fn ids(&self) -> &[SlotId] {
        &self.ids
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The pool's generation when the slots were allocated.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Splits off the slots from `at` on; none when `at` is past the end.
    pub fn split_off(&mut self, at: usize) -> Self {
        let at = at.min(self.ids.len());
        let tail = self.ids.drain(at..).collect();
        Self { pool: self.pool.clone(), ids: tail, generation: self.generation }
    }

    /// One handle for each slot, in order.
    pub fn into_singles(self) -> impl Iterator<Item = MutableSlots> {
        let (pool, generation) = (self.pool.clone(), self.generation);
        self.into_ids().into_iter().map(move |id| Self {
            pool: pool.clone(),
            ids: Ids::from_slice(&[id]),
            generation,
        })
    }

    /// One handle for the slots of many, in order. `None` when they come from different pools or
    /// generations, or from none at all; nothing is lost then, the slots are free again.
    pub fn join(handles: impl IntoIterator<Item = MutableSlots>) -> Option<Self> {
        let mut handles = handles.into_iter();
        let mut joined = handles.next()?;
        for handle in handles {
            if !joined.pool.owns(&handle.pool) || joined.generation != handle.generation {
                return None;
            }
            joined.ids.extend(handle.into_ids());
        }
        Some(joined)
    }

    pub(super) fn into_ids(mut self) -> Ids {
        std::mem::take(&mut self.ids)
    }
}

impl Drop for MutableSlots {
    fn drop(&mut self) {
        if !self.ids.is_empty() {
            self.pool.free_mutable(&self.ids);
        }
    }
}

/// Blocks with shared, read-only owners. Clones hold the same blocks; when the last is dropped the
/// blocks become inactive, the last of the batch first.
#[must_use = "dropping it releases the blocks"]
pub struct ImmutableSlots {
    pool: SlotPool,
    ids: Ids,
}

impl ImmutableSlots {
    pub(super) fn new(pool: SlotPool, ids: Ids) -> Self {
        Self { pool, ids }
    }

    /// The pool the slots belong to.
    pub fn pool(&self) -> &SlotPool {
        &self.pool
    }

    /// The slot numbers, in order.
    pub fn ids(&self) -> &[SlotId] {
        &self.ids
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The names the blocks were registered under, in order.
    pub fn registrations(&self) -> Vec<Registration> {
        self.pool.with(|state| self.ids.iter().map(|&id| state.registration(id)).collect())
    }

    /// For each block, whether it still is what lookups may find: `false` after a reset and after
    /// a failed verification.
    pub fn are_current(&self) -> Vec<bool> {
        self.pool.with(|state| self.ids.iter().map(|&id| state.is_current(id)).collect())
    }

    /// Another handle to some of the blocks; positions past the end are left out.
    pub fn slice(&self, range: Range<usize>) -> Self {
        let end = range.end.min(self.ids.len());
        let ids = Ids::from_slice(&self.ids[range.start.min(end)..end]);
        self.pool.pin_held(&ids);
        Self { pool: self.pool.clone(), ids }
    }

    /// Splits off the blocks from `at` on; none when `at` is past the end.
    pub fn split_off(&mut self, at: usize) -> Self {
        let at = at.min(self.ids.len());
        let tail = self.ids.drain(at..).collect();
        Self { pool: self.pool.clone(), ids: tail }
    }

    /// One handle for each block, in order.
    pub fn into_singles(mut self) -> impl Iterator<Item = ImmutableSlots> {
        let pool = self.pool.clone();
        let ids = std::mem::take(&mut self.ids);
        ids.into_iter().map(move |id| Self { pool: pool.clone(), ids: Ids::from_slice(&[id]) })
    }

    /// One handle for the blocks of many, in order; `None` when they come from different pools or
    /// from none at all.
    pub fn join(handles: impl IntoIterator<Item = ImmutableSlots>) -> Option<Self> {
        let mut handles = handles.into_iter();
        let mut joined = handles.next()?;
        for mut handle in handles {
            if !joined.pool.owns(&handle.pool) {
                return None;
            }
            joined.ids.extend(std::mem::take(&mut handle.ids));
        }
        Some(joined)
    }

    /// A handle that owns nothing and can be turned back while the blocks are there.
    pub fn downgrade(&self) -> WeakSlots {
        let slots =
            self.pool.with(|state| self.ids.iter().map(|&id| (id, state.epoch(id))).collect());
        WeakSlots { pool: self.pool.downgrade(), slots }
    }
}

impl Clone for ImmutableSlots {
    fn clone(&self) -> Self {
        self.slice(0..self.len())
    }
}

impl Drop for ImmutableSlots {
    fn drop(&mut self) {
        if !self.ids.is_empty() {
            self.pool.release(&self.ids);
        }
    }
}

/// Blocks somebody may want again, without keeping them.
#[derive(Clone)]
pub struct WeakSlots {
    pool: WeakPool,
    slots: Vec<(SlotId, u32)>,
}

impl WeakSlots {
    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether it stands for none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Pins the block at `position` if its slot still holds it: not once it was evicted, freed or
    /// forgotten by a reset, also when an equal block came into the same slot.
    pub fn upgrade(&self, position: usize) -> Option<ImmutableSlots> {
        let &(id, epoch) = self.slots.get(position)?;
        let pool = self.pool.upgrade()?;
        let alive = pool.with(|state| state.upgrade(id, epoch));
        alive.then(|| ImmutableSlots::new(pool, Ids::from_slice(&[id])))
    }
}

impl fmt::Debug for MutableSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MutableSlots({}: {:?})", self.pool.tier(), &self.ids[..])
    }
}

impl fmt::Debug for ImmutableSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImmutableSlots({}: {:?})", self.pool.tier(), &self.ids[..])
    }
}

impl fmt::Debug for WeakSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.slots.iter().map(|slot| slot.0)).finish()
    }
}
