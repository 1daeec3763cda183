//! The tree of registered blocks: which block continues which.
//!
//! Links exist only between registered slots of one pool. A block whose parent was not resident
//! when it was registered is a root; it stays one if the parent comes back later, which costs
//! eviction order, never correctness.

use super::{
    ring,
    slot::{Life, NONE, Slot},
};
use crate::eviction::SlotId;

/// Makes the root `child` the youngest child of `parent`.
pub(super) fn link(slots: &mut [Slot], parent: SlotId, child: SlotId) {
    let head = slots[parent as usize].first_child;
    slots[parent as usize].first_child = ring::push(slots, head, child);
    slots[child as usize].parent = parent;
}

/// Takes `id` out of the tree; its children become roots.
pub(super) fn unlink(slots: &mut [Slot], id: SlotId) {
    let Slot { parent, first_child, .. } = slots[id as usize];
    if parent != NONE {
        let head = slots[parent as usize].first_child;
        slots[parent as usize].first_child = ring::remove(slots, head, id);
        slots[id as usize].parent = NONE;
    }
    let mut child = first_child;
    while child != NONE {
        let next = ring::younger(slots, first_child, child);
        slots[child as usize].parent = NONE;
        ring::leave(&mut slots[child as usize]);
        child = next;
    }
    slots[id as usize].first_child = NONE;
}

/// `successor`, which has no place in the tree, takes that of `id`: same parent, same children.
pub(super) fn replace(slots: &mut [Slot], id: SlotId, successor: SlotId) {
    let Slot { parent, first_child, .. } = slots[id as usize];
    if parent != NONE {
        let head = slots[parent as usize].first_child;
        slots[parent as usize].first_child = ring::replace(slots, head, id, successor);
    }
    let mut child = first_child;
    while child != NONE {
        slots[child as usize].parent = successor;
        child = ring::younger(slots, first_child, child);
    }
    let old = &mut slots[id as usize];
    (old.parent, old.first_child) = (NONE, NONE);
    let new = &mut slots[successor as usize];
    (new.parent, new.first_child) = (parent, first_child);
}

/// The oldest inactive block that continues `id`, if there is one.
pub(super) fn inactive_child(slots: &[Slot], id: SlotId) -> Option<SlotId> {
    ring::members(slots, slots[id as usize].first_child)
        .find(|&child| slots[child as usize].life == Life::Inactive)
}
