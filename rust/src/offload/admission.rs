//! Which blocks are worth a write to a drive that may write only so much.
//!
//! Each drive with a budget has a bucket of tokens, one per byte: it fills at the rate of the budget
//! and holds an hour's worth, so that no day sees more than a twenty-fourth above it from blocks
//! that are offered once. While there are tokens every block is written. When there are none, only
//! what has been offered before is, which drives the bucket into debt, a day's worth at most: those
//! writes come out of what later newcomers could have had.
//!
//! What was declined is remembered for a while, in two generations of bounded size. A block that
//! continues one that was declined is declined too: without what comes before it nobody would ever
//! find it.

use std::{collections::HashSet, mem};

use crate::{
    io::Clock,
    pool::Registration,
    sync::{Arc, Mutex},
    tokens::Key,
};

const DAY_SECONDS: f64 = 86_400.0;
/// Parts of a day's budget that a bucket holds.
const BUCKETS_A_DAY: f64 = 24.0;
/// Fewer declined blocks are never remembered.
const LEAST_REMEMBERED: usize = 1024;

/// Who may be written to which drive.
pub(crate) struct Admission {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    /// By drive; `None` has no budget.
    buckets: Box<[Option<Bucket>]>,
    declined: Remembered,
}

struct Bucket {
    per_day: f64,
    tokens: f64,
    filled: std::time::Instant,
    declined: u64,
}

/// What a budget has left, and whom it has declined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BudgetState {
    /// Bytes that may be written now; negative where later ones were used in advance.
    pub(crate) left: i64,
    /// Blocks that were declined.
    pub(crate) declined: u64,
}

impl Admission {
    /// `None` where no drive has a budget, in bytes a day. Remembers the last `remembered` declined
    /// blocks at least.
    pub(crate) fn new(
        budgets: &[Option<u64>],
        remembered: usize,
        clock: Arc<dyn Clock>,
    ) -> Option<Self> {
        if budgets.iter().all(Option::is_none) {
            return None;
        }
        let filled = clock.now();
        let bucket = |per_day: u64| {
            let per_day = per_day as f64;
            Bucket { per_day, tokens: per_day / BUCKETS_A_DAY, filled, declined: 0 }
        };
        let buckets = budgets.iter().map(|budget| budget.map(bucket)).collect();
        let declined = Remembered::new(remembered.max(LEAST_REMEMBERED));
        Some(Self { clock, state: Mutex::new(State { buckets, declined }) })
    }

    /// Whether a block of so many bytes may be written to a drive, which is paid for then.
    pub(super) fn admit(&self, drive: usize, block: &Registration, bytes: u64) -> bool {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let State { buckets, declined } = &mut *state;
        let Some(bucket) = buckets.get_mut(drive).and_then(Option::as_mut) else {
            return true;
        };
        bucket.fill(now);
        let parent = block.parent.map(|parent| Key::new(parent, block.key.group));
        let seen = declined.forget(block.key);
        let orphan = parent.is_some_and(|parent| declined.contains(parent));
        // A block larger than the bucket needs a full one.
        let enough = (bytes as f64).min(bucket.per_day / BUCKETS_A_DAY);
        let affordable =
            if seen { bucket.tokens > -bucket.per_day } else { bucket.tokens >= enough };
        let admitted = affordable && (seen || !orphan);
        if admitted {
            bucket.tokens -= bytes as f64;
        } else {
            bucket.declined += 1;
            declined.remember(block.key);
        }
        admitted
    }

    /// Nothing came of the write.
    pub(super) fn refund(&self, drive: usize, block: &Registration, bytes: u64) {
        let mut state = self.state.lock();
        let State { buckets, declined } = &mut *state;
        if let Some(bucket) = buckets.get_mut(drive).and_then(Option::as_mut) {
            bucket.tokens += bytes as f64;
            // Offered again, it should fare no worse.
            declined.remember(block.key);
        }
    }

    /// By drive; `None` has no budget.
    pub(crate) fn budgets(&self) -> Vec<Option<BudgetState>> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let each = state.buckets.iter_mut().map(|bucket| {
            let bucket = bucket.as_mut()?;
            bucket.fill(now);
            Some(BudgetState { left: bucket.tokens as i64, declined: bucket.declined })
        });
        each.collect()
    }
}

impl Bucket {
    fn fill(&mut self, now: std::time::Instant) {
        let seconds = now.saturating_duration_since(self.filled).as_secs_f64();
        let filled = self.tokens + self.per_day / DAY_SECONDS * seconds;
        // What is in it by a refund stays.
        self.tokens = filled.min((self.per_day / BUCKETS_A_DAY).max(self.tokens));
        self.filled = now;
    }
}

/// The last keys, `limit` at least and twice as many at most.
struct Remembered {
    limit: usize,
    recent: HashSet<Key>,
    older: HashSet<Key>,
}

impl Remembered {
    fn new(limit: usize) -> Self {
        Self { limit, recent: HashSet::new(), older: HashSet::new() }
    }

    fn remember(&mut self, key: Key) {
        if self.recent.len() >= self.limit {
            self.older = mem::take(&mut self.recent);
        }
        self.recent.insert(key);
    }

    fn contains(&self, key: Key) -> bool {
        self.recent.contains(&key) || self.older.contains(&key)
    }

    /// Whether it was there.
    fn forget(&mut self, key: Key) -> bool {
        self.recent.remove(&key) | self.older.remove(&key)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::{io::ManualClock, tokens::SequenceHash};

    const DAY: Duration = Duration::from_secs(86_400);

    fn block(number: u64, parent: Option<u64>) -> Registration {
        let hash = |number| SequenceHash::from_u128(u128::from(number) << 64 | 1);
        Registration { key: Key::new(hash(number), 0), parent: parent.map(hash), engine_key: None }
    }

    #[test]
    fn an_empty_bucket_takes_what_was_offered_before_and_nothing_that_continues_what_was_not() {
        let clock = Arc::new(ManualClock::new());
        let admission = Admission::new(&[Some(2400), None], 0, clock.clone()).unwrap();
        for number in 0..10 {
            assert!(admission.admit(0, &block(number, None), 10), "an hour's worth is there");
        }
        assert!(!admission.admit(0, &block(10, None), 10));
        assert!(admission.admit(1, &block(10, None), 10), "the other has no budget");
        clock.advance(Duration::from_secs(3600));
        assert!(!admission.admit(0, &block(11, Some(10)), 10), "nobody would find it");
        assert!(admission.admit(0, &block(10, None), 10), "a second time");
        assert!(admission.admit(0, &block(11, Some(10)), 10));
        assert_eq!(admission.budgets()[0].unwrap().declined, 2);
        assert_eq!(admission.budgets()[1], None);
        admission.refund(0, &block(11, Some(10)), 10);
        assert_eq!(admission.budgets()[0].unwrap().left, 90);
        assert!(Admission::new(&[None], 9, clock).is_none());
    }

    proptest! {
        /// Blocks that are never offered twice cost no more than budget and bucket.
        #[test]
        fn newcomers_stay_within_the_budget(
            per_day in 1_u64..1_000_000,
            steps in prop::collection::vec((0_u64..40_000, 1_u64..2000), 1..300),
        ) {
            let clock = Arc::new(ManualClock::new());
            let admission = Admission::new(&[Some(per_day)], 0, clock.clone()).unwrap();
            let (mut written, mut passed) = (0, Duration::ZERO);
            let mut largest = 0;
            for (number, (wait, bytes)) in steps.into_iter().enumerate() {
                clock.advance(Duration::from_secs(wait));
                passed += Duration::from_secs(wait);
                if admission.admit(0, &block(number as u64, None), bytes) {
                    written += bytes;
                    largest = largest.max(bytes);
                }
                let most = per_day as f64 * (passed.as_secs_f64() / DAY.as_secs_f64() + 1.0 / 24.0);
                prop_assert!(written as f64 <= most + largest as f64 + 1e-3);
            }
        }

        /// And second offers no more than a day's in advance.
        #[test]
        fn debt_is_bounded(offers in prop::collection::vec(1_u64..5000, 1..400)) {
            let clock = Arc::new(ManualClock::new());
            let admission = Admission::new(&[Some(24_000)], 0, clock).unwrap();
            for (number, &bytes) in offers.iter().enumerate() {
                for _ in 0..2 {
                    admission.admit(0, &block(number as u64, None), bytes);
                    prop_assert!(admission.budgets()[0].unwrap().left >= -24_000 - 5000);
                }
            }
        }
    }
}
