//! Names of blocks that were evicted.
//!
//! A ghost is the 64-bit key of a block that is no longer there, kept in eviction order so that a
//! policy can recognise what it regrets. The number of ghosts is bounded, everything is allocated
//! once, and every operation is constant time: a node array of keys, lists over it, and a table
//! from key to node. About 30 to 40 bytes a ghost.

use super::list::{Lists, Place};
use crate::index::{BlockIndex, Mixer};

/// Ghosts in `N - 1` lists, numbered from 0; the last list holds the unused nodes.
pub(super) struct Ghosts<const N: usize> {
    lists: Lists<N>,
    keys: Vec<u64>,
    index: BlockIndex,
    mixer: Mixer,
}

impl<const N: usize> Ghosts<N> {
    const UNUSED: u8 = N as u8 - 1;

    /// Room for `capacity` ghosts in all lists together.
    pub(super) fn new(capacity: u32) -> Self {
        let mut lists = Lists::new(capacity);
        let capacity = lists.nodes();
        for node in 0..capacity {
            lists.push_back(Self::UNUSED, node);
        }
        Self {
            lists,
            keys: vec![0; capacity as usize],
            index: BlockIndex::new(capacity),
            mixer: Mixer::new(),
        }
    }

    /// Ghosts in `list`.
    pub(super) fn len(&self, list: u8) -> usize {
        self.lists.len(list)
    }

    /// Whether the next [`push`](Self::push) of a new key would be dropped.
    pub(super) fn is_full(&self) -> bool {
        self.lists.len(Self::UNUSED) == 0
    }

    /// Makes `key` the youngest ghost of `list`. A key that is a ghost already moves; when there
    /// is no room it is dropped: [`pop`](Self::pop) first from the list of your choice.
    pub(super) fn push(&mut self, list: u8, key: u64) {
        if let Some(node) = self.node(key) {
            self.lists.push_front(list, node);
            return;
        }
        let Some(node) = self.lists.back(Self::UNUSED) else { return };
        if self.index.insert(self.mixer.mix(u128::from(key), 0), node) {
            self.keys[node as usize] = key;
            self.lists.push_front(list, node);
        }
    }

    /// Forgets the oldest ghost of `list`; false when it has none.
    pub(super) fn pop(&mut self, list: u8) -> bool {
        let oldest = self.lists.back(list);
        if let Some(node) = oldest {
            self.release(node);
        }
        oldest.is_some()
    }

    /// Forgets the ghost `key`; the list it was in.
    pub(super) fn take(&mut self, key: u64) -> Option<u8> {
        let node = self.node(key)?;
        let Place::In(list) = self.lists.place(node) else { return None };
        self.release(node);
        Some(list)
    }

    fn node(&self, key: u64) -> Option<u32> {
        let hash = self.mixer.mix(u128::from(key), 0);
        self.index.find(hash, |node| self.keys[node as usize] == key)
    }

    fn release(&mut self, node: u32) {
        let hash = self.mixer.mix(u128::from(self.keys[node as usize]), 0);
        self.index.remove(hash, node);
        self.lists.push_front(Self::UNUSED, node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_the_youngest_and_moves_the_known() {
        let mut ghosts = Ghosts::<3>::new(2);
        ghosts.push(0, 10);
        ghosts.push(1, 11);
        ghosts.push(1, 10);
        ghosts.push(0, 12);
        assert!(ghosts.is_full() && ghosts.len(0) == 0 && ghosts.len(1) == 2);
        assert!(ghosts.pop(1) && ghosts.take(11).is_none());
        ghosts.push(0, 12);
        assert_eq!((ghosts.take(12), ghosts.take(10), ghosts.take(10)), (Some(0), Some(1), None));
        assert!(!ghosts.pop(0) && !ghosts.pop(1));
        Ghosts::<2>::new(0).push(0, 1);
    }
}
