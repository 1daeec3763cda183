//! The tree of registered blocks: which block continues which.
//!
//! Links exist only between registered slots of one pool. A block whose parent was not resident
//! when it was registered is a root; it stays one if the parent comes back later, which costs
//! eviction order, never correctness.

use super::slot::{Life, NONE, Slot};
use crate::eviction::SlotId;

/// Makes `child` the newest child of `parent`.
pub(super) fn link(slots: &mut [Slot], parent: SlotId, child: SlotId) {
    let first = slots[parent as usize].first_child;
    if first != NONE {
        slots[first as usize].prev_sibling = child;
    }
    slots[parent as usize].first_child = child;
    let slot = &mut slots[child as usize];
    slot.parent = parent;
    slot.next_sibling = first;
    slot.prev_sibling = NONE;
}

/// Takes `id` out of the tree; its children become roots.
pub(super) fn unlink(slots: &mut [Slot], id: SlotId) {
    let Slot { parent, next_sibling, prev_sibling, first_child, .. } = slots[id as usize];
    if prev_sibling != NONE {
        slots[prev_sibling as usize].next_sibling = next_sibling;
    } else if parent != NONE {
        slots[parent as usize].first_child = next_sibling;
    }
    if next_sibling != NONE {
        slots[next_sibling as usize].prev_sibling = prev_sibling;
    }
    let mut child = first_child;
    while child != NONE {
        let slot = &mut slots[child as usize];
        child = slot.next_sibling;
        slot.parent = NONE;
        slot.next_sibling = NONE;
        slot.prev_sibling = NONE;
    }
    let slot = &mut slots[id as usize];
    slot.parent = NONE;
    slot.first_child = NONE;
    slot.next_sibling = NONE;
    slot.prev_sibling = NONE;
}

/// `successor` takes the place of `id` in the tree: same parent, same children.
pub(super) fn replace(slots: &mut [Slot], id: SlotId, successor: SlotId) {
    let Slot { parent, next_sibling, prev_sibling, first_child, .. } = slots[id as usize];
    {
        let slot = &mut slots[successor as usize];
        slot.parent = parent;
        slot.first_child = first_child;
        slot.next_sibling = next_sibling;
        slot.prev_sibling = prev_sibling;
    }
    if prev_sibling != NONE {
        slots[prev_sibling as usize].next_sibling = successor;
    } else if parent != NONE {
        slots[parent as usize].first_child = successor;
    }
    if next_sibling != NONE {
        slots[next_sibling as usize].prev_sibling = successor;
    }
    let mut child = first_child;
    while child != NONE {
        slots[child as usize].parent = successor;
        child = slots[child as usize].next_sibling;
    }
    let slot = &mut slots[id as usize];
    slot.parent = NONE;
    slot.first_child = NONE;
    slot.next_sibling = NONE;
    slot.prev_sibling = NONE;
}

/// An inactive block that continues `id`, if there is one.
pub(super) fn inactive_child(slots: &[Slot], id: SlotId) -> Option<SlotId> {
    let mut child = slots[id as usize].first_child;
    while child != NONE {
        let slot = &slots[child as usize];
        if slot.life == Life::Inactive {
            return Some(child);
        }
        child = slot.next_sibling;
    }
    None
}
