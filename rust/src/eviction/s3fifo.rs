//! Three queues (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).
//!
//! New blocks enter a small queue, a tenth of the capacity. At its tail those used again move to
//! the main queue, the others leave as ghosts; a ghost that returns enters the main queue at once.
//! At the tail of the main queue a block that was used goes round again, one use poorer. A tenth,
//! and uses counted up to 3, are the paper's. Ours are that one use carries a block over and is
//! spent by that, and that there are as many ghosts as slots: chains of blocks are used together,
//! and these kept the most of them on the traces of `examples/traces`.
//!
//! A pinned block keeps its place. When it reaches a tail it is parked outside the queue, and
//! returns to that tail once it is unpinned.

use super::ghosts::Ghosts;
use super::list::{Lists, Place};
use super::{EvictionPolicy, SlotId};

const SMALL: u8 = 0;
const MAIN: u8 = 1;
const GHOSTS: u8 = 0;

/// Uses are counted up to here.
const MAX_USES: u8 = 3;

#[derive(Clone, Copy, Default)]
struct Slot {
    key: u64,
    uses: u8,
    pinned: bool,
    /// The queue that a parked block came from.
    home: u8,
}

/// The queues, the ghosts, and what is known of each slot.
pub struct S3Fifo {
    /// Youngest at the front. Parked blocks are apart.
    lists: Lists<2>,
    ghosts: Ghosts<2>,
    slots: Vec<Slot>,
    evictable: usize,
    small_target: usize,
}

impl S3Fifo {
    /// A policy for the slots `0..capacity`; 55 to 65 bytes a slot, ghosts included.
    pub fn new(capacity: u32) -> Self {
        let small = (capacity / 10).max(1);
        Self {
            lists: Lists::new(capacity),
            ghosts: Ghosts::new(capacity),
            slots: vec![Slot::default(); capacity as usize],
            evictable: 0,
            small_target: small as usize,
        }
    }

    fn is_pinned(&self, slot: SlotId) -> bool {
        self.slots.get(slot as usize).is_some_and(|s| s.pinned)
    }
}

impl EvictionPolicy for S3Fifo {
    fn name(&self) -> &'static str {
        "s3fifo"
    }

    fn insert(&mut self, slot: SlotId, key: u64) {
        if !self.lists.is_vacant(slot) {
            return;
        }
        let queue = if self.ghosts.take(key).is_some() { MAIN } else { SMALL };
        self.slots[slot as usize] = Slot { key, ..Slot::default() };
        self.lists.push_front(queue, slot);
        self.evictable += 1;
    }

    fn touch(&mut self, slot: SlotId) {
        if let Some(s) = self.slots.get_mut(slot as usize) {
            s.uses = (s.uses + 1).min(MAX_USES);
        }
    }

    fn pin(&mut self, slot: SlotId) {
        if self.lists.place(slot) != Place::Absent && !self.is_pinned(slot) {
            self.touch(slot);
            self.hold(slot);
        }
    }

    fn hold(&mut self, slot: SlotId) {
        if self.lists.place(slot) != Place::Absent && !self.is_pinned(slot) {
            self.slots[slot as usize].pinned = true;
            self.evictable -= 1;
        }
    }

    fn unpin(&mut self, slot: SlotId) {
        if self.is_pinned(slot) {
            self.slots[slot as usize].pinned = false;
            self.evictable += 1;
            if self.lists.place(slot) == Place::Apart {
                self.lists.push_back(self.slots[slot as usize].home, slot);
            }
        }
    }

    fn remove(&mut self, slot: SlotId) {
        self.unpin(slot);
        if self.lists.place(slot) != Place::Absent {
            self.lists.forget(slot);
            self.evictable -= 1;
        }
    }

    fn evict(&mut self) -> Option<SlotId> {
        if self.evictable == 0 {
            return None;
        }
        // Ends: each turn evicts, parks, moves a block to the main queue, or takes one of its uses.
        loop {
            let small_is_full = self.lists.len(SMALL) >= self.small_target;
            let queue = if small_is_full || self.lists.len(MAIN) == 0 { SMALL } else { MAIN };
            let slot = self.lists.back(queue)?;
            let state = &mut self.slots[slot as usize];
            if state.pinned {
                state.home = queue;
                self.lists.set_apart(slot);
            } else if queue == SMALL && state.uses > 0 {
                state.uses = 0;
                self.lists.push_front(MAIN, slot);
            } else if queue == MAIN && state.uses > 0 {
                state.uses -= 1;
                self.lists.push_front(MAIN, slot);
            } else {
                self.evicted(slot);
                return Some(slot);
            }
        }
    }

    fn evicted(&mut self, slot: SlotId) {
        let Place::In(queue) = self.lists.place(slot) else { return };
        if self.is_pinned(slot) {
            return;
        }
        self.lists.forget(slot);
        self.evictable -= 1;
        if queue == SMALL {
            if self.ghosts.is_full() {
                self.ghosts.pop(GHOSTS);
            }
            self.ghosts.push(GHOSTS, self.slots[slot as usize].key);
        }
    }

    fn len(&self) -> usize {
        self.evictable
    }
}
