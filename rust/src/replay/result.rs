//! What a replay with bytes found.

use std::{
    collections::BTreeMap,
    ops::{Index, IndexMut},
};

use serde::Serialize;

use crate::{
    config::{EvictionKind, Tier},
    metrics::{Edge, LatencySummary},
};

/// The outcome of a replay with bytes. Serialises to what `dynamo-llm replay --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ByteReplay {
    /// Name of the trace.
    pub trace: String,
    /// The policy of every tier.
    pub policy: EvictionKind,
    /// Different blocks in the trace.
    pub unique_blocks: u32,
    /// Bytes of a block.
    pub bytes_per_block: u64,
    /// Blocks of each tier that is on.
    pub capacity_blocks: BTreeMap<Tier, u64>,
    /// Requests replayed.
    pub requests: u64,
    /// Requests longer than the device tier, served up to its size; the rest counts as missed.
    pub cut_requests: u64,
    /// Blocks asked for.
    pub blocks: u64,
    /// Blocks of prefixes that arrived.
    pub hit_blocks: u64,
    /// Percent of `blocks` that were hits; 0 for a trace without blocks.
    pub hit_rate: f64,
    /// Hits by the fastest tier that held the block at lookup.
    pub hits: Hits,
    /// Payload bytes that were copied between tiers.
    pub bytes: BTreeMap<Edge, u64>,
    /// Those bytes per second that the replay waited for them: the copies with their sums, and
    /// what it takes to start them and to hear of their end.
    pub bandwidth: BTreeMap<Edge, f64>,
    /// Copies that failed, by reason; edges and reasons without a failure are left out.
    pub failures: BTreeMap<Edge, BTreeMap<&'static str, u64>>,
    /// Blocks handed out whose bytes were compared with what they should be.
    pub verified_blocks: u64,
    /// Those that differed. Each ends its prefix, is no hit, and is not handed out again.
    pub verify_failures: u64,
    /// How long the verbs took.
    pub latency_us: Latencies,
    /// Registered blocks that each tier dropped to make room.
    pub evictions: BTreeMap<Tier, u64>,
    /// Bytes that drives were given to write: blocks, sums and records.
    pub disk_written_bytes: u64,
    /// Those per block that was loaded from disk and verified; `None` without such a block.
    pub disk_written_bytes_per_hit: Option<f64>,
    /// Times that the manager was made anew on the way.
    pub restarts: u64,
    /// Time taken, in seconds.
    pub seconds: f64,
    /// How it came to this: some hundred samples, evenly over the requests.
    pub timeline: Vec<Sample>,
}

/// Blocks by tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Hits {
    /// Found in the device tier.
    pub device: u64,
    /// Found in the host tier.
    pub host: u64,
    /// Found on disk.
    pub disk: u64,
    /// Found in a remote store.
    pub remote: u64,
    /// Found with a peer.
    pub peer: u64,
}

impl Hits {
    /// Of all tiers together.
    pub fn sum(&self) -> u64 {
        self.device + self.host + self.disk + self.remote + self.peer
    }
}

impl Index<Tier> for Hits {
    type Output = u64;

    fn index(&self, tier: Tier) -> &u64 {
        match tier {
            Tier::Device => &self.device,
            Tier::Host => &self.host,
            Tier::Disk => &self.disk,
            Tier::Remote => &self.remote,
        }
    }
}

impl IndexMut<Tier> for Hits {
    fn index_mut(&mut self, tier: Tier) -> &mut u64 {
        match tier {
            Tier::Device => &mut self.device,
            Tier::Host => &mut self.host,
            Tier::Disk => &mut self.disk,
            Tier::Remote => &mut self.remote,
        }
    }
}

/// The first requests, up to some point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Sample {
    /// Requests so far.
    pub requests: u64,
    /// Their blocks.
    pub blocks: u64,
    /// Their hits.
    pub hits: Hits,
}

/// How long the verbs took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Latencies {
    /// Finding and pinning the longest prefix of a request.
    pub lookup: Quantiles,
    /// Getting the slots for what a request lacks, evictions included.
    pub allocate: Quantiles,
    /// Bringing a prefix up of which at least one block was below the device tier.
    pub onboard: Quantiles,
}

/// Two quantiles in microseconds; `None` for a verb that was never used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Quantiles {
    /// Half took no longer.
    pub p50: Option<f64>,
    /// 99 of 100 took no longer.
    pub p99: Option<f64>,
}

impl From<LatencySummary> for Quantiles {
    fn from(summary: LatencySummary) -> Self {
        let used = summary.count > 0;
        Self { p50: used.then_some(summary.p50_us), p99: used.then_some(summary.p99_us) }
    }
}
