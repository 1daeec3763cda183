//! Resets that span tiers, seen from the edges.
//!
//! A pool refuses blocks that were allocated before its own reset. A reset of *several* tiers
//! takes them one after another, and a copy that begins in between could take old bytes from the
//! tier that comes later into the one that came first. So copies begin only outside such a reset:
//! whoever begins one enters, takes its target slots, and checks that no reset has begun since.
//! From then on the slots' own generation tells.
//!
//! Resets may overlap: each counts as under way until it has ended, and nobody waits for another,
//! so whoever is told of a reset may start one.

use crate::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Counts resets: those under way in the low half, those begun ever in the high half.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResetEpoch(Arc<AtomicU64>);

const UNDER_WAY: u64 = 1;
const BEGUN: u64 = 1 << 32;

impl ResetEpoch {
    /// The epoch to begin a copy in; `None` while a reset is under way.
    pub(super) fn enter(&self) -> Option<u64> {
        Some(self.0.load(Ordering::SeqCst)).filter(|epoch| epoch % BEGUN == 0)
    }

    /// Whether no reset has begun since `epoch` was entered.
    pub(super) fn holds(&self, epoch: u64) -> bool {
        self.0.load(Ordering::SeqCst) == epoch
    }

    /// Runs a reset.
    pub(crate) fn reset<T>(&self, reset: impl FnOnce() -> T) -> T {
        /// Ends the reset, also when it panics.
        struct UnderWay<'a>(&'a AtomicU64);
        impl Drop for UnderWay<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(UNDER_WAY, Ordering::SeqCst);
            }
        }
        self.0.fetch_add(BEGUN + UNDER_WAY, Ordering::SeqCst);
        let _under_way = UnderWay(&self.0);
        reset()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_begin_only_outside_resets_and_only_if_none_began_since() {
        let epoch = ResetEpoch::default();
        let entered = epoch.enter();
        assert!(entered.is_some_and(|entered| epoch.holds(entered)));
        epoch.reset(|| {
            assert_eq!(epoch.enter(), None);
            epoch.reset(|| ());
            assert_eq!(epoch.enter(), None, "the outer one has not ended");
        });
        assert!(entered.is_some_and(|entered| !epoch.holds(entered)));
        assert!(epoch.enter().is_some_and(|entered| epoch.holds(entered)));
    }
}
