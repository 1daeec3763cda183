//! Rings of slots in order of age, through the slots' own links.
//!
//! A ring is known by its head, its oldest member; `NONE` is the empty ring. Every operation but
//! the walk is constant time. A slot is in at most one ring; one that is in none has no neighbours.

use super::slot::{NONE, Slot};
use crate::eviction::SlotId;

/// Adds `id` as the youngest; returns the head.
pub(super) fn push(slots: &mut [Slot], head: SlotId, id: SlotId) -> SlotId {
    if head == NONE {
        (slots[id as usize].next, slots[id as usize].prev) = (id, id);
        return id;
    }
    let last = slots[head as usize].prev;
    (slots[id as usize].next, slots[id as usize].prev) = (head, last);
    slots[last as usize].next = id;
    slots[head as usize].prev = id;
    head
}

/// Takes the member `id` out; returns the head.
pub(super) fn remove(slots: &mut [Slot], head: SlotId, id: SlotId) -> SlotId {
    let Slot { next, prev, .. } = slots[id as usize];
    leave(&mut slots[id as usize]);
    if next == id {
        return NONE;
    }
    slots[prev as usize].next = next;
    slots[next as usize].prev = prev;
    if head == id { next } else { head }
}

/// Puts `successor`, a member of no ring, where the member `id` is; returns the head.
pub(super) fn replace(slots: &mut [Slot], head: SlotId, id: SlotId, successor: SlotId) -> SlotId {
    let Slot { next, prev, .. } = slots[id as usize];
    leave(&mut slots[id as usize]);
    let (next, prev) = if next == id { (successor, successor) } else { (next, prev) };
    (slots[successor as usize].next, slots[successor as usize].prev) = (next, prev);
    slots[prev as usize].next = successor;
    slots[next as usize].prev = successor;
    if head == id { successor } else { head }
}

/// The neighbour of `id` away from the head; `NONE` behind the youngest.
pub(super) fn younger(slots: &[Slot], head: SlotId, id: SlotId) -> SlotId {
    let next = slots[id as usize].next;
    if next == head { NONE } else { next }
}

/// The members, oldest first.
pub(super) fn members(slots: &[Slot], head: SlotId) -> impl Iterator<Item = SlotId> {
    let first = (head != NONE).then_some(head);
    std::iter::successors(first, move |&id| {
        let next = younger(slots, head, id);
        (next != NONE).then_some(next)
    })
}

/// Makes `slot` a member of no ring; its former neighbours are not told.
pub(super) fn leave(slot: &mut Slot) {
    (slot.next, slot.prev) = (NONE, NONE);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_queue(steps in prop::collection::vec((0u8..3, 0u32..8, 0u32..8), 0..60)) {
            let mut slots = vec![Slot::free(); 8];
            let mut head = NONE;
            let mut model: Vec<SlotId> = Vec::new();
            for (verb, id, other) in steps {
                let place = model.iter().position(|&member| member == id);
                match (verb, place) {
                    (0, None) => {
                        head = push(&mut slots, head, id);
                        model.push(id);
                    }
                    (1, Some(place)) => {
                        head = remove(&mut slots, head, id);
                        model.remove(place);
                    }
                    (2, Some(place)) if !model.contains(&other) => {
                        head = replace(&mut slots, head, id, other);
                        model[place] = other;
                    }
                    _ => {}
                }
                prop_assert!(members(&slots, head).eq(model.iter().copied()));
                let apart = |id: &SlotId| slots[*id as usize].next == NONE;
                prop_assert!((0..8).all(|id| apart(&id) != model.contains(&id)));
            }
        }
    }
}
