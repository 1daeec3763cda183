//! Adaptive replacement cache (Megiddo and Modha, FAST 2003).
//!
//! Blocks seen once and blocks seen again are two LRU orders; each has a tail of ghosts. A block
//! that returns while it is a ghost tells which order was too short, and the target for the first
//! moves by that. Together the orders and their ghosts are at most twice the capacity.
//!
//! Two differences from the paper, both owed to pools that make room before they know for what:
//! a returning ghost moves the target for the evictions after its own insertion, and ghosts are
//! trimmed when a block is inserted. A pinned block counts as seen again and is out of its order
//! until it is unpinned; one that is only held returns to the order it came from.

use super::ghosts::Ghosts;
use super::list::{Lists, Place};
use super::{EvictionPolicy, SlotId};

/// Seen once; the ghosts of such.
const ONCE: u8 = 0;
/// Seen again; the ghosts of such.
const AGAIN: u8 = 1;

/// The two orders, their ghosts, and the target that balances them.
pub struct Arc {
    /// Most recent at the front. Pinned blocks are apart.
    lists: Lists<2>,
    ghosts: Ghosts<3>,
    keys: Vec<u64>,
    /// The order that a pinned block returns to.
    homes: Vec<u8>,
    pinned: usize,
    /// How many blocks seen once to keep: 0 to capacity.
    target: usize,
}

impl Arc {
    /// A policy for the slots `0..capacity`; 50 to 60 bytes a slot, ghosts included.
    pub fn new(capacity: u32) -> Self {
        Self {
            lists: Lists::new(capacity),
            // One more than the capacity: the victim that makes room for a returning ghost must
            // not push that ghost out.
            ghosts: Ghosts::new(capacity.saturating_add(1)),
            keys: vec![0; capacity as usize],
            homes: vec![ONCE; capacity as usize],
            pinned: 0,
            target: 0,
        }
    }

    fn capacity(&self) -> usize {
        self.keys.len()
    }

    /// Forgets the oldest ghosts beyond the paper's bounds.
    fn trim(&mut self) {
        let once = self.lists.len(ONCE);
        while once + self.ghosts.len(ONCE) > self.capacity() && self.ghosts.pop(ONCE) {}
        let resident = once + self.lists.len(AGAIN) + self.pinned;
        while resident + self.ghosts.len(ONCE) + self.ghosts.len(AGAIN) > 2 * self.capacity()
            && (self.ghosts.pop(AGAIN) || self.ghosts.pop(ONCE))
        {}
    }

    fn haunt(&mut self, list: u8, key: u64) {
        if self.ghosts.is_full() {
            let first = if self.lists.len(ONCE) + self.ghosts.len(ONCE) >= self.capacity() {
                [ONCE, AGAIN]
            } else {
                [AGAIN, ONCE]
            };
            let _ = self.ghosts.pop(first[0]) || self.ghosts.pop(first[1]);
        }
        self.ghosts.push(list, key);
    }
}

impl EvictionPolicy for Arc {
    fn name(&self) -> &'static str {
        "arc"
    }

    fn insert(&mut self, slot: SlotId, key: u64) {
        if !self.lists.is_vacant(slot) {
            return;
        }
        let (once, again) = (self.ghosts.len(ONCE), self.ghosts.len(AGAIN));
        let list = match self.ghosts.take(key) {
            None => ONCE,
            Some(ONCE) => {
                self.target = (self.target + (again / once).max(1)).min(self.capacity());
                AGAIN
            }
            Some(_) => {
                self.target = self.target.saturating_sub((once / again).max(1));
                AGAIN
            }
        };
        self.keys[slot as usize] = key;
        self.lists.push_front(list, slot);
        self.trim();
    }

    fn touch(&mut self, slot: SlotId) {
        match self.lists.place(slot) {
            Place::In(_) => self.lists.push_front(AGAIN, slot),
            Place::Apart => self.homes[slot as usize] = AGAIN,
            Place::Absent => {}
        }
    }

    fn pin(&mut self, slot: SlotId) {
        self.hold(slot);
        self.touch(slot);
    }

    fn hold(&mut self, slot: SlotId) {
        if let Place::In(list) = self.lists.place(slot) {
            self.homes[slot as usize] = list;
            self.lists.set_apart(slot);
            self.pinned += 1;
        }
    }

    fn unpin(&mut self, slot: SlotId) {
        if self.lists.place(slot) == Place::Apart {
            self.lists.push_front(self.homes[slot as usize], slot);
            self.pinned -= 1;
        }
    }

    fn remove(&mut self, slot: SlotId) {
        self.unpin(slot);
        if self.lists.place(slot) != Place::Absent {
            self.lists.forget(slot);
        }
    }

    fn evict(&mut self) -> Option<SlotId> {
        let preferred = if self.lists.len(ONCE) > self.target { ONCE } else { AGAIN };
        let slot = self.lists.back(preferred).or_else(|| self.lists.back(1 - preferred))?;
        self.evicted(slot);
        Some(slot)
    }

    fn evicted(&mut self, slot: SlotId) {
        if let Place::In(list) = self.lists.place(slot) {
            self.lists.forget(slot);
            self.haunt(list, self.keys[slot as usize]);
        }
    }

    fn len(&self) -> usize {
        self.lists.len(ONCE) + self.lists.len(AGAIN)
    }
}
