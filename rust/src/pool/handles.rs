//! The handles: what a caller holds is what it may do.
//!
//! Each handle stands for one or more slots of one pool and takes the lock once for all of them.

use std::{fmt, iter, ops::Range};

use super::{Registration, WeakSlots, shared::SlotPool, state::Ids};
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

    /// One handle for each slot, in order. Slots that are not taken from it are freed with it.
    pub fn into_singles(self) -> impl Iterator<Item = MutableSlots> {
        let mut rest = Reversed::new(self);
        iter::from_fn(move || {
            let MutableSlots { pool, ids, generation } = &mut rest.0;
            let ids = Ids::from_slice(&[ids.pop()?]);
            Some(Self { pool: pool.clone(), ids, generation: *generation })
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

    /// Puts the slots out of use because their memory proved bad.
    pub fn quarantine(mut self) {
        let ids = std::mem::take(&mut self.ids);
        self.pool.with(|state| state.quarantine_mutable(&ids));
    }

    pub(super) fn into_ids(mut self) -> Ids {
        std::mem::take(&mut self.ids)
    }
}

impl Drop for MutableSlots {
    fn drop(&mut self) {
        if !self.ids.is_empty() {
            self.pool.with(|state| state.free_mutable(&self.ids));
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

    /// Whether the blocks are of this pool.
    pub fn belongs_to(&self, pool: &SlotPool) -> bool {
        self.pool.owns(pool)
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

    /// For each block, whether lookups of its key give another slot, which was registered before it
    /// and holds the same. This one is as good while it is held, and free when it is not.
    pub fn are_duplicates(&self) -> Vec<bool> {
        self.pool.with(|state| self.ids.iter().map(|&id| state.is_duplicate(id)).collect())
    }

    /// Takes the blocks out of the index for good because their bytes are not what they should
    /// be. Their slots are out of use once the last reader is gone.
    pub fn quarantine(self) {
        self.pool.with(|state| state.quarantine(&self.ids));
    }

    /// Another handle to some of the blocks; positions past the end are left out.
    pub fn slice(&self, range: Range<usize>) -> Self {
        let end = range.end.min(self.ids.len());
        let ids = Ids::from_slice(&self.ids[range.start.min(end)..end]);
        self.pool.with(|state| state.pin_held(&ids));
        Self { pool: self.pool.clone(), ids }
    }

    /// Splits off the blocks from `at` on; none when `at` is past the end.
    pub fn split_off(&mut self, at: usize) -> Self {
        let at = at.min(self.ids.len());
        let tail = self.ids.drain(at..).collect();
        Self { pool: self.pool.clone(), ids: tail }
    }

    /// One handle for each block, in order. Blocks that are not taken from it are released with it.
    pub fn into_singles(self) -> impl Iterator<Item = ImmutableSlots> {
        let mut rest = Reversed::new(self);
        iter::from_fn(move || {
            let ImmutableSlots { pool, ids } = &mut rest.0;
            let ids = Ids::from_slice(&[ids.pop()?]);
            Some(Self { pool: pool.clone(), ids })
        })
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
        WeakSlots::new(&self.pool, &self.ids)
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
            self.pool.with(|state| state.release(&self.ids));
        }
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

/// A handle of many slots.
trait Batch {
    fn ids_mut(&mut self) -> &mut Ids;
}

/// A handle whose slots are taken from the end, in their order; what remains is turned back, so
/// that it is released as it would have been.
struct Reversed<H: Batch>(H);

impl<H: Batch> Reversed<H> {
    fn new(mut handle: H) -> Self {
        handle.ids_mut().reverse();
        Self(handle)
    }
}

impl<H: Batch> Drop for Reversed<H> {
    fn drop(&mut self) {
        self.0.ids_mut().reverse();
    }
}

impl Batch for MutableSlots {
    fn ids_mut(&mut self) -> &mut Ids {
        &mut self.ids
    }
}

impl Batch for ImmutableSlots {
    fn ids_mut(&mut self) -> &mut Ids {
        &mut self.ids
    }
}
