//! First in, first out: the block that came first goes first, however often it was used.
//!
//! A pinned block keeps its place. When it reaches the tail it is parked outside the queue, and
//! returns to the tail once it is unpinned: it is the oldest there is.

use super::list::{Lists, Place};
use super::{EvictionPolicy, SlotId};

const QUEUE: u8 = 0;

/// The queue and which of its blocks are in use.
pub struct Fifo {
    /// Youngest at the front.
    lists: Lists<1>,
    pinned: Vec<bool>,
    evictable: usize,
}

impl Fifo {
    /// A policy for the slots `0..capacity`; 11 bytes a slot.
    pub fn new(capacity: u32) -> Self {
        Self { lists: Lists::new(capacity), pinned: vec![false; capacity as usize], evictable: 0 }
    }

    fn is_pinned(&self, slot: SlotId) -> bool {
        self.pinned.get(slot as usize).is_some_and(|&pinned| pinned)
    }
}

impl EvictionPolicy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn insert(&mut self, slot: SlotId, _key: u64) {
        if self.lists.is_vacant(slot) {
            self.lists.push_front(QUEUE, slot);
            self.evictable += 1;
        }
    }

    fn touch(&mut self, _slot: SlotId) {}

    fn pin(&mut self, slot: SlotId) {
        if self.lists.place(slot) != Place::Absent && !self.is_pinned(slot) {
            self.pinned[slot as usize] = true;
            self.evictable -= 1;
        }
    }

    fn unpin(&mut self, slot: SlotId) {
        if self.is_pinned(slot) {
            self.pinned[slot as usize] = false;
            self.evictable += 1;
            if self.lists.place(slot) == Place::Apart {
                self.lists.push_back(QUEUE, slot);
            }
        }
    }

    fn remove(&mut self, slot: SlotId) {
        self.unpin(slot);
        self.evicted(slot);
    }

    fn evict(&mut self) -> Option<SlotId> {
        if self.evictable == 0 {
            return None;
        }
        loop {
            let slot = self.lists.back(QUEUE)?;
            if !self.is_pinned(slot) {
                self.evicted(slot);
                return Some(slot);
            }
            self.lists.set_apart(slot);
        }
    }

    fn evicted(&mut self, slot: SlotId) {
        if self.lists.place(slot) != Place::Absent && !self.is_pinned(slot) {
            self.lists.forget(slot);
            self.evictable -= 1;
        }
    }

    fn len(&self) -> usize {
        self.evictable
    }
}
