//! Which block goes when a tier needs room.
//!
//! A policy is bookkeeping over slot numbers: it never sees bytes, handles or locks. The owner
//! (a pool, or an index-only replay) tells it what happens and asks it for victims. All state is
//! index-linked lists in arrays sized once, so the steady state allocates nothing.
//!
//! # Life of a block, as a policy sees it
//!
//! `insert` when a block first becomes evictable; `pin` when somebody starts using it, which also
//! counts as an access; `hold` when somebody starts using it who did not ask for it (a copy to
//! another tier); `unpin` when the last user is gone; `touch` for an access that changes nothing
//! else, also while it is pinned;
//! `remove` when it leaves for a reason other than eviction; `evict` to choose and drop a victim.

mod arc;
mod fifo;
mod ghosts;
mod list;
mod lru;
mod s3fifo;

pub use arc::Arc;
pub use fifo::Fifo;
pub use lru::Lru;
pub use s3fifo::S3Fifo;

use crate::config::EvictionKind;

/// Index of a block-sized place in a tier.
pub type SlotId = u32;

/// An eviction policy over the slots `0..capacity` of one tier.
///
/// Calls follow the life of a block (see the module documentation); a policy may rely on that and
/// must not panic when it is violated: a call that makes no sense (a slot out of range, inserted
/// twice, unpinned without a pin) changes nothing. `key` is a 64-bit digest of the block's identity: it is
/// what a policy remembers about blocks that have left (ghost entries), so a collision may cost a
/// hit but never correctness.
pub trait EvictionPolicy: Send {
    /// The name used in configuration and reports.
    fn name(&self) -> &'static str;

    /// `slot` now holds the evictable block `key`, unknown to the policy until now.
    fn insert(&mut self, slot: SlotId, key: u64);

    /// The block was asked for and found. It stays what it was, evictable or pinned.
    fn touch(&mut self, slot: SlotId);

    /// The block was asked for and found, and is in use until [`unpin`](Self::unpin): it counts as
    /// accessed and is no candidate for eviction.
    fn pin(&mut self, slot: SlotId);

    /// The block is in use until [`unpin`](Self::unpin), though nobody asked for it: no candidate
    /// for eviction, not accessed. Policies that tell the two apart say so; for the others it is
    /// [`pin`](Self::pin).
    fn hold(&mut self, slot: SlotId) {
        self.pin(slot);
    }

    /// The last user of a pinned block is gone: it is a candidate again.
    fn unpin(&mut self, slot: SlotId);

    /// The block, pinned or not, left the tier without being evicted.
    fn remove(&mut self, slot: SlotId);

    /// Chooses a victim among the evictable blocks and forgets it; `None` when there is none.
    fn evict(&mut self) -> Option<SlotId>;

    /// The owner evicted `slot` in place of a victim of the policy's own choice (a block that
    /// continues the victim goes first). Same bookkeeping as if `evict` had returned it.
    fn evicted(&mut self, slot: SlotId);

    /// Evictable blocks.
    fn len(&self) -> usize;

    /// Whether nothing can be evicted.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl EvictionKind {
    /// The policy of this name for the slots `0..capacity`.
    pub fn build(self, capacity: u32) -> Box<dyn EvictionPolicy> {
        match self {
            EvictionKind::Lru => Box::new(Lru::new(capacity)),
            EvictionKind::Fifo => Box::new(Fifo::new(capacity)),
            EvictionKind::Arc => Box::new(Arc::new(capacity)),
            EvictionKind::S3fifo => Box::new(S3Fifo::new(capacity)),
        }
    }
}
