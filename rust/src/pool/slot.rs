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

/// Lifecycle, identity and chain links of a slot; 56 bytes, so that a probe that hits touches one
/// cache line or two.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    hash: [u64; 2],
    pub(super) group: u32,
    /// Readers, while active.
    pub(super) refs: u32,
    /// Grows whenever the slot's content ends; weak handles compare it.
    pub(super) epoch: u32,
    /// Next younger duplicate of the same key (see `State::duplicates`).
    pub(super) next_duplicate: SlotId,
    /// The registered block that this one continues.
    pub(super) parent: SlotId,
    /// A registered block that continues this one; the others follow as its siblings.
    pub(super) first_child: SlotId,
    pub(super) next_sibling: SlotId,
    pub(super) prev_sibling: SlotId,
    pub(super) life: Life,
    /// In the index: lookups of the key give this slot.
    pub(super) registered: bool,
    /// The policy tracks it. An inactive block it does not track is condemned: first to go.
    pub(super) tracked: bool,
    /// Bytes failed verification: quarantine it when the last reader is gone.
    pub(super) suspect: bool,
    /// A reset came while it was active: it serves its readers and nobody else.
    pub(super) forgotten: bool,
    /// A parent hash is on record.
    pub(super) has_parent: bool,
    /// An engine key is on record.
    pub(super) has_engine_key: bool,
}

impl Slot {
    pub(super) const fn free() -> Self {
        Self {
            hash: [0; 2],
            group: 0,
            refs: 0,
            epoch: 0,
            next_duplicate: NONE,
            parent: NONE,
            first_child: NONE,
            next_sibling: NONE,
            prev_sibling: NONE,
            life: Life::Free,
            registered: false,
            tracked: false,
            suspect: false,
            forgotten: false,
            has_parent: false,
            has_engine_key: false,
        }
    }

    pub(super) fn key(&self) -> Key {
        Key { hash: unpack(self.hash), group: self.group }
    }

    pub(super) fn set_key(&mut self, key: Key) {
        self.hash = pack(key.hash);
        self.group = key.group;
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
