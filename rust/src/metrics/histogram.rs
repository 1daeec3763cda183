//! Latencies, counted in buckets that grow with the value.

use std::time::Duration;

use serde::Serialize;

use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Buckets per doubling, as a power of two. A value differs from its bucket's middle by at most
/// half a bucket, 1/64 of the bucket's start: 1.6 %.
const PRECISION: u32 = 5;
const PER_OCTAVE: usize = 1 << PRECISION;
/// Values from 2^40 ns (18 minutes) on share the last bucket.
const OCTAVES: u32 = 40;
/// Values below `PER_OCTAVE` have a bucket each; each further octave has `PER_OCTAVE`.
const BUCKETS: usize = PER_OCTAVE * (OCTAVES - PRECISION + 1) as usize;

/// A histogram of durations with nanosecond resolution at the low end and a relative error of at
/// most 1.6 % everywhere (durations from 18 minutes on count as 18 minutes, except for the
/// maximum, which is exact).
///
/// Recording is three relaxed atomic additions and never allocates; the histogram takes 9 KiB.
/// Threads may record while another summarises: the summary is then of some instant in between.
#[derive(Debug)]
pub struct LatencyHistogram {
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl LatencyHistogram {
    /// An empty histogram.
    pub fn new() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
        }
    }

    /// Counts one duration.
    pub fn record(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(ns)].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
        self.max_ns.fetch_max(ns, Relaxed);
    }

    /// The figures so far.
    pub fn summary(&self) -> LatencySummary {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        let count = counts.iter().sum();
        let max = self.max_ns.load(Relaxed);
        // A bucket's middle can lie above the largest value in it.
        let us = |fraction| quantile(&counts, count, fraction).min(max as f64) / 1e3;
        LatencySummary {
            count,
            sum_us: self.sum_ns.load(Relaxed) as f64 / 1e3,
            p50_us: us(0.50),
            p99_us: us(0.99),
            max_us: max as f64 / 1e3,
        }
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::new()
    }
}

fn bucket(ns: u64) -> usize {
    let ns = ns.min((1 << OCTAVES) - 1);
    if ns < PER_OCTAVE as u64 {
        return ns as usize;
    }
    // The leading bit says which octave, the next PRECISION bits where in it.
    let shift = ns.ilog2() - PRECISION;
    let within = (ns >> shift) as usize - PER_OCTAVE;
    PER_OCTAVE * (shift as usize + 1) + within
}

/// The middle of a bucket, in nanoseconds.
fn middle(bucket: usize) -> f64 {
    if bucket < PER_OCTAVE {
        return bucket as f64;
    }
    let shift = (bucket / PER_OCTAVE - 1) as u32;
    let start = ((PER_OCTAVE + bucket % PER_OCTAVE) as u64) << shift;
    start as f64 + ((1_u64 << shift) - 1) as f64 / 2.0
}

/// The smallest value that at least `fraction` of the counted ones do not exceed.
fn quantile(counts: &[u64], count: u64, fraction: f64) -> f64 {
    let rank = ((count as f64 * fraction).ceil() as u64).max(1);
    let mut seen = 0;
    for (index, &here) in counts.iter().enumerate() {
        seen += here;
        if seen >= rank {
            return middle(index);
        }
    }
    0.0
}

/// What a histogram says, in microseconds; all zero when nothing was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LatencySummary {
    /// Durations recorded.
    pub count: u64,
    /// Their sum.
    pub sum_us: f64,
    /// Half of them took no longer.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

#[cfg(test)]
#[allow(clippy::float_cmp)] // the maximum is exact
mod tests {
    use super::*;

    fn summarise(ns: &[u64]) -> LatencySummary {
        let histogram = LatencyHistogram::new();
        for &ns in ns {
            histogram.record(Duration::from_nanos(ns));
        }
        histogram.summary()
    }

    #[test]
    fn nothing_recorded_is_all_zero() {
        assert_eq!(summarise(&[]), LatencySummary::default());
    }

    #[test]
    fn buckets_are_in_order_and_hold_their_middle() {
        for index in 0..BUCKETS {
            assert_eq!(bucket(middle(index) as u64), index);
            assert!(index == 0 || middle(index) > middle(index - 1));
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(summarise(&[u64::MAX]).max_us, u64::MAX as f64 / 1e3);
    }

    proptest::proptest! {
        #[test]
        fn quantiles_are_close(mut ns in proptest::collection::vec(0_u64..1 << 40, 1..200)) {
            let summary = summarise(&ns);
            ns.sort_unstable();
            for (fraction, found) in [(0.5, summary.p50_us), (0.99, summary.p99_us)] {
                let rank = (ns.len() as f64 * fraction).ceil() as usize;
                let exact = ns[rank - 1] as f64 / 1e3;
                proptest::prop_assert!((found - exact).abs() <= 0.016 * exact, "{found} {exact}");
            }
            proptest::prop_assert_eq!(summary.max_us, *ns.last().unwrap_or(&0) as f64 / 1e3);
            proptest::prop_assert_eq!(summary.count, ns.len() as u64);
        }
    }
}
