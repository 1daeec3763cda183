//! Several doubly linked lists over one array of nodes.
//!
//! A node is a number below the count given at construction and is in at most one list at a time.
//! Lists are circular through a sentinel, so linking and unlinking have no special cases; links
//! are 8 bytes a node and are allocated once. A node in no list may still be marked as
//! [`apart`](Place::Apart), which is how a policy keeps a block in use out of the order.

use super::SlotId;

/// Where a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Unknown to the policy, or no node at all.
    Absent,
    /// Known, in no list.
    Apart,
    /// In the list of this number.
    In(u8),
}

#[derive(Clone, Copy)]
struct Link {
    prev: u32,
    next: u32,
}

/// `N` lists, numbered from 0.
pub(super) struct Lists<const N: usize> {
    /// Of the nodes, then of the `N` sentinels. From a sentinel, `next` is the front.
    links: Vec<Link>,
    places: Vec<Place>,
    lens: [u32; N],
}

impl<const N: usize> Lists<N> {
    /// Empty lists over the nodes `0..nodes`.
    pub(super) fn new(nodes: u32) -> Self {
        // The last numbers are the sentinels'.
        let nodes = nodes.min(u32::MAX - N as u32);
        let alone = |node| Link { prev: node, next: node };
        let mut links = vec![alone(0); nodes as usize];
        links.extend((nodes..nodes + N as u32).map(alone));
        Self { links, places: vec![Place::Absent; nodes as usize], lens: [0; N] }
    }

    #[inline]
    pub(super) fn place(&self, node: SlotId) -> Place {
        self.places.get(node as usize).copied().unwrap_or(Place::Absent)
    }

    /// Nodes of all kinds.
    pub(super) fn nodes(&self) -> u32 {
        self.places.len() as u32
    }

    /// Whether `node` is one of ours and may be taken in.
    #[inline]
    pub(super) fn is_vacant(&self, node: SlotId) -> bool {
        self.places.get(node as usize) == Some(&Place::Absent)
    }

    /// Nodes in `list`.
    pub(super) fn len(&self, list: u8) -> usize {
        self.lens[usize::from(list)] as usize
    }

    /// Moves `node` from wherever it is to the front of `list`.
    #[inline]
    pub(super) fn push_front(&mut self, list: u8, node: SlotId) {
        let sentinel = self.sentinel(list);
        self.detach(node, Place::In(list));
        let first = self.links[sentinel as usize].next;
        self.link(sentinel, node, first);
        self.lens[usize::from(list)] += 1;
    }

    /// Moves `node` from wherever it is to the back of `list`.
    #[inline]
    pub(super) fn push_back(&mut self, list: u8, node: SlotId) {
        let sentinel = self.sentinel(list);
        self.detach(node, Place::In(list));
        let last = self.links[sentinel as usize].prev;
        self.link(last, node, sentinel);
        self.lens[usize::from(list)] += 1;
    }

    /// Takes `node` out of its list, if it is in one, and marks it as apart.
    #[inline]
    pub(super) fn set_apart(&mut self, node: SlotId) {
        self.detach(node, Place::Apart);
    }

    /// Takes `node` out of its list, if it is in one, and forgets it.
    #[inline]
    pub(super) fn forget(&mut self, node: SlotId) {
        self.detach(node, Place::Absent);
    }

    /// The last node of `list`.
    #[inline]
    pub(super) fn back(&self, list: u8) -> Option<SlotId> {
        let sentinel = self.sentinel(list);
        let last = self.links[sentinel as usize].prev;
        (last != sentinel).then_some(last)
    }

    #[inline]
    fn sentinel(&self, list: u8) -> u32 {
        (self.places.len() + usize::from(list)) as u32
    }

    /// Unlinks `node` if it is linked and notes its new place. `node` must be one of ours.
    #[inline]
    fn detach(&mut self, node: SlotId, place: Place) {
        if let Place::In(list) = std::mem::replace(&mut self.places[node as usize], place) {
            let Link { prev, next } = self.links[node as usize];
            self.links[prev as usize].next = next;
            self.links[next as usize].prev = prev;
            self.lens[usize::from(list)] -= 1;
        }
    }

    #[inline]
    fn link(&mut self, prev: u32, node: SlotId, next: u32) {
        self.links[node as usize] = Link { prev, next };
        self.links[prev as usize].next = node;
        self.links[next as usize].prev = node;
    }
}
