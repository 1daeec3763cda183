//! Least recently used: the block whose last use ended longest ago goes first.
//!
//! A pinned block is out of the order and returns to its young end when it is unpinned. The order
//! among blocks unpinned together is the order of the calls.

use super::list::{Lists, Place};
use super::{EvictionPolicy, SlotId};

const ORDER: u8 = 0;

/// The order of last use.
pub struct Lru {
    /// Most recent at the front. Pinned blocks are apart.
    lists: Lists<1>,
}

impl Lru {
    /// A policy for the slots `0..capacity`; 10 bytes a slot.
    pub fn new(capacity: u32) -> Self {
        Self { lists: Lists::new(capacity) }
    }
}

impl EvictionPolicy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn insert(&mut self, slot: SlotId, _key: u64) {
        if self.lists.is_vacant(slot) {
            self.lists.push_front(ORDER, slot);
        }
    }

    fn touch(&mut self, slot: SlotId) {
        if self.lists.place(slot) == Place::In(ORDER) {
            self.lists.push_front(ORDER, slot);
        }
    }

    fn pin(&mut self, slot: SlotId) {
        if self.lists.place(slot) == Place::In(ORDER) {
            self.lists.set_apart(slot);
        }
    }

    fn unpin(&mut self, slot: SlotId) {
        if self.lists.place(slot) == Place::Apart {
            self.lists.push_front(ORDER, slot);
        }
    }

    fn remove(&mut self, slot: SlotId) {
        if self.lists.place(slot) != Place::Absent {
            self.lists.forget(slot);
        }
    }

    fn evict(&mut self) -> Option<SlotId> {
        let slot = self.lists.back(ORDER)?;
        self.lists.forget(slot);
        Some(slot)
    }

    fn evicted(&mut self, slot: SlotId) {
        if self.lists.place(slot) == Place::In(ORDER) {
            self.lists.forget(slot);
        }
    }

    fn len(&self) -> usize {
        self.lists.len(ORDER)
    }
}
