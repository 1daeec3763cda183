//! The figures of pools, edges and the event stream.

use std::{collections::BTreeMap, fmt};

use serde::{Serialize, Serializer};

use super::{DriveMetrics, LatencySummary};
use crate::config::Tier;

/// One pool: slots by state now, and what happened since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolMetrics {
    /// Slots in all: the sum of the five states below.
    pub capacity: u64,
    /// Slots that hold nothing.
    pub free: u64,
    /// Slots that somebody is filling.
    pub mutable: u64,
    /// Slots of finished blocks that somebody holds.
    pub active: u64,
    /// Slots of registered blocks that nobody holds: they can be matched and evicted.
    pub inactive: u64,
    /// Slots kept out of use because their bytes failed a check or a copy's end is not known.
    pub quarantined: u64,
    /// Blocks that were asked for and found; in the disk tier, that were loaded and verified too.
    pub hits: u64,
    /// Blocks that were asked for and not found.
    pub misses: u64,
    /// Blocks handed out to be filled.
    pub allocations: u64,
    /// Requests for blocks that could not be met.
    pub allocation_failures: u64,
    /// Blocks registered under a key that the pool did not hold.
    pub registrations: u64,
    /// Blocks registered under a key that it held already.
    pub duplicates: u64,
    /// Registered blocks dropped to make room.
    pub evictions: u64,
    /// Times that the pool forgot everything.
    pub resets: u64,
}

impl PoolMetrics {
    /// Hits per block asked for, 0 to 1; `None` before the first.
    pub fn hit_rate(&self) -> Option<f64> {
        let asked = self.hits + self.misses;
        (asked > 0).then(|| self.hits as f64 / asked as f64)
    }

    /// The part of the slots that cannot be had, 0 to 1.
    pub fn usage(&self) -> f64 {
        if self.capacity == 0 {
            return 0.0;
        }
        1.0 - (self.free + self.inactive) as f64 / self.capacity as f64
    }
}

/// A way that blocks take; prints and serialises as `device->host`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Edge {
    /// Where they come from.
    pub from: Tier,
    /// Where they go.
    pub to: Tier,
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}->{}", self.from, self.to)
    }
}

impl Serialize for Edge {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One edge since the manager was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EdgeMetrics {
    /// Blocks that arrived.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks that were there already, so that nothing was copied.
    pub present: u64,
    /// Blocks whose copy failed, by reason: `no_room`, `given_up` (cancelled, or its deadline
    /// passed), `stale` (forgotten by a reset on its way), `verification`, `declined` (by the write
    /// budget of its drive), `other`.
    pub failures: BTreeMap<&'static str, u64>,
    /// Blocks that were to go this way and never started, for want of room in the queue or a slot.
    pub drops: u64,
    /// Blocks that wait now.
    pub queue_depth: u64,
}

/// The event stream since the manager was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EventMetrics {
    /// Events that got a number.
    pub recorded: u64,
    /// Events that the sink was told.
    pub delivered: u64,
    /// Events that were dropped because too many waited.
    pub dropped: u64,
    /// Events at which the sink panicked.
    pub panics: u64,
}

/// Everything that a manager counts, at one instant.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BlockManagerMetrics {
    /// The worker whose figures these are.
    pub worker_id: u64,
    /// Pools by tier; a tier that is off has none.
    pub pools: BTreeMap<Tier, PoolMetrics>,
    /// The drives of the disk tier, in the order of the settings.
    pub drives: Vec<DriveMetrics>,
    /// Movement between tiers.
    pub edges: BTreeMap<Edge, EdgeMetrics>,
    /// Latencies by verb (`lookup`, `allocate`, `onboard`, ...).
    pub latency: BTreeMap<&'static str, LatencySummary>,
    /// The event stream.
    pub events: EventMetrics,
}
