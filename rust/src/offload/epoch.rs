//! Resets that span tiers, seen from the edges.
//!
//! A pool refuses blocks that were allocated before its own reset. A reset of *several* tiers
//! takes them one after another, and a copy that begins in between could take old bytes from the
//! tier that comes later into the one that came first. So copies begin only outside such a reset:
//! whoever begins one enters, takes its target slots, and checks that no reset has begun since.
//! From then on the slots' own generation tells.

use crate::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Counts resets; odd while one is under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResetEpoch(Arc<AtomicU64>);

impl ResetEpoch {
    /// The epoch to begin a copy in; `None` while a reset is under way.
    pub(super) fn enter(&self) -> Option<u64> {
        Some(self.0.load(Ordering::SeqCst)).filter(|epoch| epoch % 2 == 0)
    }

    /// Whether no reset has begun since `epoch` was entered.
    pub(super) fn holds(&self, epoch: u64) -> bool {
        self.0.load(Ordering::SeqCst) == epoch
    }

    /// Runs a reset; the caller makes sure that there is one at a time.
    pub(crate) fn reset<T>(&self, reset: impl FnOnce() -> T) -> T {
        self.0.fetch_add(1, Ordering::SeqCst);
        let result = reset();
        self.0.fetch_add(1, Ordering::SeqCst);
        result
    }
}
