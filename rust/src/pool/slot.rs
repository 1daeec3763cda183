//! One slot's record.

use crate::{
    eviction::SlotId,
    tokens::{Key, SequenceHash},
};

/// No slot.
pub(super) const NONE: SlotId = SlotId::MAX;

/// Where a slot is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    /// Holds nothing; in the free list.
    Free,
    /// Owned by one `MutableSlots`.
    Mutable,
    /// Holds a block with at least one reader.
    Active,
    /// Holds a registered block that nobody uses.
    Inactive,
    /// Out of use because its bytes failed verification.
    Quarantined,
}

/// What lookups make of the block in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// They never give it: there is no block, or another slot is registered under its key.
    Unlisted,
    /// They give it: the slot is in the index.
    Registered,
    /// A reset came while it was active; it serves its readers and nobody else.
    Forgotten,
    /// Its bytes failed verification; its slot is quarantined when the last reader is gone.
    Suspect,
}

/// What the eviction policy knows of the block in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tracking {
    /// Nothing. An inactive block that is not tracked is condemned: first to go.
    Untracked,
    /// Nothing yet, though the block was asked for while in its first use: an access to make up
    /// for when the policy gets it.
    Asked,
    /// It has the block, as evictable while inactive and as pinned while active.
    Tracked,
}

/// Lifecycle, identity and links of a slot; 56 bytes, what a comparison reads in front.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Slot {
    hash: [u64; 2],
    group: u32,
    /// Readers, while active. Never counted down from the largest number, see `State::release`.
    pub(super) refs: u32,
    /// Grows whenever the slot's content ends; weak handles compare it.
    pub(super) epoch: u64,
    /// The registered block that this one continues.
    pub(super) parent: SlotId,
    /// The oldest registered block that continues this one.
    pub(super) first_child: SlotId,
    /// The oldest duplicate of a registered block.
    pub(super) duplicates: SlotId,
    /// Ring of the blocks with the same parent; of an unlisted block, of the duplicates of its key.
    pub(super) next: SlotId,
    pub(super) prev: SlotId,
    pub(super) life: Life,
    pub(super) standing: Standing,
    pub(super) tracking: Tracking,
    /// A parent hash is on record.
    pub(super) has_parent: bool,
}

impl Slot {
    pub(super) const fn free() -> Self {
        Self {
            hash: [0; 2],
            group: 0,
            refs: 0,
            epoch: 0,
            parent: NONE,
            first_child: NONE,
            duplicates: NONE,
            next: NONE,
            prev: NONE,
            life: Life::Free,
            standing: Standing::Unlisted,
            tracking: Tracking::Untracked,
            has_parent: false,
        }
    }

    #[inline]
    pub(super) fn key(&self) -> Key {
        Key { hash: unpack(self.hash), group: self.group }
    }

    pub(super) fn set_key(&mut self, key: Key) {
        self.hash = pack(key.hash);
        self.group = key.group;
    }

    pub(super) fn is_registered(&self) -> bool {
        self.standing == Standing::Registered
    }

    pub(super) fn is_tracked(&self) -> bool {
        self.tracking == Tracking::Tracked
    }

    /// The content is no more: weak handles to it are dead.
    pub(super) fn end(&mut self) {
        self.epoch += 1;
        self.standing = Standing::Unlisted;
        self.tracking = Tracking::Untracked;
        self.has_parent = false;
    }
}

/// A 128-bit hash in two words: keeps arrays of them 8-aligned.
pub(super) const fn pack(hash: SequenceHash) -> [u64; 2] {
    let value = hash.as_u128();
    [value as u64, (value >> 64) as u64]
}

pub(super) const fn unpack(words: [u64; 2]) -> SequenceHash {
    SequenceHash::from_u128(words[0] as u128 | (words[1] as u128) << 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_costs_what_the_module_says() {
        assert_eq!(size_of::<Slot>(), 56);
    }
}
