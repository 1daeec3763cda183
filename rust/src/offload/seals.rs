//! The seals of a tier's slots.
//!
//! One row a slot: the root and the sums of its tiles; of a tier that keeps its sums beside the
//! bytes, the root alone. A row is written by whoever owns the slot mutably and read by whoever
//! holds the block in it; the pool's lock, which turns the one into the other, orders the two. The
//! words are atomic so that this needs no `unsafe`.

use crate::{
    eviction::SlotId,
    seal::{Fingerprint, Seal, SealRoot},
    sync::atomic::{AtomicU64, Ordering},
};

/// Words of a root.
const ROOT: usize = 2;

/// A row of words for each slot.
pub(super) struct SealTable {
    words: Box<[AtomicU64]>,
    row: usize,
}

impl SealTable {
    pub(super) fn new(slots: usize, tiles: usize) -> Self {
        let row = ROOT + tiles;
        Self { words: (0..slots * row).map(|_| AtomicU64::new(0)).collect(), row }
    }

    /// Whether bytes with these sums are what was sealed in `slot` as the block with this identity.
    pub(super) fn proves(
        &self,
        slot: SlotId,
        identity: &[u8],
        fingerprint: &Fingerprint,
        sums: &[u64],
    ) -> bool {
        let seal = self.get(slot);
        if self.row == ROOT {
            return Seal::new(identity, fingerprint, sums).root() == seal.root();
        }
        seal.verify(identity, fingerprint, sums).is_ok()
    }

    /// The sums of what was sealed in `slot` as the block with this identity; `None` where nothing
    /// was, or the sums are not kept here.
    pub(super) fn sums(
        &self,
        slot: SlotId,
        identity: &[u8],
        fingerprint: &Fingerprint,
    ) -> Option<Box<[u64]>> {
        let seal = Some(self.get(slot)).filter(|_| self.row > ROOT)?;
        let holds = seal.verify_part(identity, fingerprint, []).is_ok();
        holds.then(|| seal.sums().into())
    }

    /// Keeps a root that was found.
    pub(super) fn put_root(&self, slot: SlotId, root: SealRoot) {
        self.put(slot, &Seal::from_parts(root, &[][..]));
    }

    fn row(&self, slot: SlotId) -> &[AtomicU64] {
        let start = slot as usize * self.row;
        &self.words[start..start + self.row]
    }

    pub(super) fn put(&self, slot: SlotId, seal: &Seal) {
        let root = u128::from_le_bytes(*seal.root().as_bytes());
        let root = [root as u64, (root >> 64) as u64];
        let words = root.iter().chain(seal.sums());
        for (target, &word) in self.row(slot).iter().zip(words) {
            target.store(word, Ordering::Relaxed);
        }
    }

    fn get(&self, slot: SlotId) -> Seal {
        let words: Vec<u64> =
            self.row(slot).iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let root = u128::from(words[0]) | u128::from(words[1]) << 64;
        Seal::from_parts(SealRoot::from_bytes(root.to_le_bytes()), &words[ROOT..])
    }
}
