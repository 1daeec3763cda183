//! Replay with bytes: a trace through a real manager.
//!
//! One request at a time, as an engine would serve it: look its blocks up over all tiers; bring the
//! prefix that was found to the device; allocate, fill and register the rest; store that to the
//! lower tiers and wait for it; then tell every tier that the request's blocks were used, and
//! release them, in both cases last first.
//!
//! A hit is a block of the prefix that arrived, counted under the fastest tier that held it at
//! lookup. With verification the bytes of each are compared on the device with what they were
//! filled with: a difference ends the prefix, and the block is put out of use. A store that the
//! request itself brings about counts as the entry of a block into that tier, not as a use of it
//! beside that: a policy that tells blocks used once from blocks used again can do so.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::{
    ByteReplay, ByteReplayOptions, Latencies, Progress, ReplayCancelled, ReplayError, Sample,
    Trace, keys::Keys, pattern,
};
use crate::{
    config::Tier,
    manager::{BlockPool, BlockPoolError, ImmutableBlock, KvBlockManager, ManagerError},
    metrics::{Edge, LatencyHistogram},
    offload::{Match, OnboardOptions, Onboarded},
    pool::{ImmutableSlots, Registration},
    tokens::SequenceHash,
    transfer::Arrival,
};

/// Samples of the timeline.
const SAMPLES: usize = 100;

/// Time between two calls of the progress callback, which is also how long a cancellation waits.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(10);

const DOWN: Edge = Edge { from: Tier::Device, to: Tier::Host };
const UP: Edge = Edge { from: Tier::Host, to: Tier::Device };

/// Drives `trace` through a block manager of its own, made as `options` say.
///
/// `progress` is called about every 10 ms, also within long requests, and once at the end; `Break`
/// ends the replay. Memory is that of the tiers, which is checked against the machine before any
/// of it is touched.
///
/// # Errors
/// [`ReplayError`], for options that cannot be and a replay that was cancelled. Blocks that fail
/// are in the result.
pub fn with_bytes(
    trace: &Trace,
    options: &ByteReplayOptions,
    progress: impl FnMut(Progress) -> ControlFlow<()>,
) -> Result<ByteReplay, ReplayError> {
    let manager = KvBlockManager::new_blocking(options.manager(trace)?)?;
    let device = manager.device().ok_or(ReplayError::NoDevice)?;
    let clock = Clock::new(trace.len() as u64, progress);
    let start = Instant::now();
    let mut replay = Replay {
        manager: &manager,
        device,
        verify: options.verify,
        clock,
        total: Sample::default(),
        cut_requests: 0,
        verified_blocks: 0,
        verify_failures: 0,
        lookup: LatencyHistogram::new(),
        allocate: LatencyHistogram::new(),
        onboard: LatencyHistogram::new(),
        loading: Duration::ZERO,
        storing: Duration::ZERO,
    };
    let mut timeline = Vec::with_capacity(SAMPLES);
    let mut keys = Keys::new(trace);
    let every = trace.len().div_ceil(SAMPLES).max(1);
    for (index, request) in trace.requests().enumerate() {
        replay.serve(&keys.of(request))?;
        if (index + 1) % every == 0 || index + 1 == trace.len() {
            timeline.push(replay.total);
        }
        replay.clock.request_done()?;
    }
    replay.clock.report()?;
    Ok(replay.result(trace, options, timeline, start.elapsed()))
}

struct Replay<'a, P> {
    manager: &'a KvBlockManager,
    device: &'a BlockPool,
    verify: bool,
    clock: Clock<P>,
    total: Sample,
    cut_requests: u64,
    verified_blocks: u64,
    verify_failures: u64,
    lookup: LatencyHistogram,
    allocate: LatencyHistogram,
    onboard: LatencyHistogram,
    /// Time spent waiting for copies up and down.
    loading: Duration,
    storing: Duration,
}

impl<P: FnMut(Progress) -> ControlFlow<()>> Replay<'_, P> {
    fn serve(&mut self, asked: &[SequenceHash]) -> Result<(), ReplayError> {
        self.total.requests += 1;
        self.total.blocks += asked.len() as u64;
        let keys = &asked[..asked.len().min(self.device.total_blocks())];
        self.cut_requests += u64::from(keys.len() < asked.len());

        let found = timed(&self.lookup, || self.manager.lookup(keys))?;
        let tiers: Vec<Tier> = found.tiers().collect();
        let prefix = self.bring(found, keys)?;
        let hits = prefix.as_ref().map_or(0, ImmutableSlots::len);
        for &tier in &tiers[..hits] {
            self.total.hits[tier] += 1;
        }

        let (rest, stored) = self.compute(keys, hits)?;
        let served = &keys[..hits + rest.len()];
        self.device.touch_blocks_blocking(served)?;
        rest.into_iter().rev().for_each(drop);
        drop(prefix);
        self.touch_below(served, hits, &stored)
    }

    /// Brings what was found to the device and checks it; the prefix that is good.
    fn bring(
        &mut self,
        found: Match,
        keys: &[SequenceHash],
    ) -> Result<Option<ImmutableSlots>, ReplayError> {
        let below = found.len() > found.count(Tier::Device);
        let start = Instant::now();
        let mut under_way = self.manager.start_onboard(found, OnboardOptions::default())?;
        let Onboarded { blocks, .. } = loop {
            match under_way.wait(Some(PROGRESS_INTERVAL)) {
                Ok(onboarded) => break onboarded,
                Err(still) => under_way = still,
            }
            self.clock.tick()?;
        };
        if below {
            self.onboard.record(start.elapsed());
            self.loading += start.elapsed();
        }
        match blocks {
            Some(blocks) if self.verify => self.check(blocks, keys),
            blocks => Ok(blocks),
        }
    }

    /// The prefix of `blocks` that holds what it should. The first block that does not is taken
    /// out of use, the others behind it are released.
    fn check(
        &mut self,
        mut blocks: ImmutableSlots,
        keys: &[SequenceHash],
    ) -> Result<Option<ImmutableSlots>, ReplayError> {
        let views = self.device.single(blocks.clone())?;
        for (index, (block, &key)) in views.iter().zip(keys).enumerate() {
            self.verified_blocks += 1;
            if !pattern::holds(key, block.block_view()?) {
                self.verify_failures += 1;
                tracing::error!(%key, block = block.block_id(), "bytes are not those of the key");
                let mut bad = blocks.split_off(index);
                drop(bad.split_off(1));
                bad.quarantine();
                break;
            }
            self.clock.tick()?;
        }
        views.into_iter().rev().for_each(drop);
        Ok(Some(blocks).filter(|blocks| !blocks.is_empty()))
    }

    /// Allocates, fills and registers what follows the first `hits` blocks, and stores it below.
    /// Returns the blocks, and what became of the store of each.
    fn compute(
        &mut self,
        keys: &[SequenceHash],
        hits: usize,
    ) -> Result<(Vec<ImmutableBlock>, Vec<bool>), ReplayError> {
        // Fewer than it should be only where a slot was put out of use.
        let count = (keys.len() - hits).min(self.device.available_blocks());
        if count == 0 {
            return Ok((Vec::new(), Vec::new()));
        }
        let keys = &keys[..hits + count];
        let mut blocks = timed(&self.allocate, || self.device.allocate_blocks_blocking(count))?;
        for (block, &key) in blocks.iter_mut().zip(&keys[hits..]) {
            pattern::fill(key, block.block_view_mut()?);
            self.clock.tick()?;
        }
        let registrations = Registration::chain(keys, 0, None);
        let blocks = self
            .device
            .register_blocks_as(blocks, &registrations[hits..])
            .map_err(BlockPoolError::from)?;
        let stored = self.store(&blocks)?;
        Ok((blocks, stored))
    }

    /// Copies blocks down and waits; whether each has newly come into the host tier.
    fn store(&mut self, blocks: &[ImmutableBlock]) -> Result<Vec<bool>, ReplayError> {
        let start = Instant::now();
        let transfer = match self.manager.offload(blocks) {
            Err(ManagerError::NoSuchTier { .. }) => return Ok(vec![false; blocks.len()]),
            transfer => transfer?,
        };
        let results = loop {
            if let Some(results) = transfer.wait(Some(PROGRESS_INTERVAL)) {
                break results;
            }
            self.clock.tick()?;
        };
        self.storing += start.elapsed();
        Ok(results.iter().map(|result| *result == Ok(Arrival::Copied)).collect())
    }

    /// Tells the lower tier that the request's blocks were used, except for those that this
    /// request has just put there.
    fn touch_below(
        &self,
        served: &[SequenceHash],
        hits: usize,
        stored: &[bool],
    ) -> Result<(), ReplayError> {
        let Some(host) = self.manager.host() else { return Ok(()) };
        let (prefix, rest) = served.split_at(hits);
        let before = rest.iter().zip(stored).filter(|(_, new)| !**new).map(|(key, _)| key);
        let used: Vec<SequenceHash> = prefix.iter().chain(before).copied().collect();
        host.touch_blocks_blocking(&used)?;
        Ok(())
    }

    fn result(
        self,
        trace: &Trace,
        options: &ByteReplayOptions,
        timeline: Vec<Sample>,
        time: Duration,
    ) -> ByteReplay {
        let Sample { requests, blocks, hits } = self.total;
        let hit_blocks = hits.sum();
        let status = self.manager.status();
        let bytes = status.edges.iter().map(|(&edge, metrics)| (edge, metrics.bytes)).collect();
        let bandwidth = [(DOWN, self.storing), (UP, self.loading)]
            .into_iter()
            .filter_map(|(edge, time)| {
                let bytes = status.edges.get(&edge)?.bytes;
                (bytes > 0).then(|| (edge, bytes as f64 / time.as_secs_f64()))
            })
            .collect();
        let failures = status.edges.iter().filter_map(|(&edge, metrics)| {
            let mut failures = metrics.failures.clone();
            failures.retain(|_, blocks| *blocks > 0);
            (!failures.is_empty()).then_some((edge, failures))
        });
        ByteReplay {
            trace: trace.name().to_owned(),
            policy: options.policy,
            unique_blocks: trace.unique_blocks(),
            bytes_per_block: options.bytes_per_block,
            capacity_blocks: status
                .pools
                .iter()
                .map(|(&tier, pool)| (tier, pool.capacity))
                .collect(),
            requests,
            cut_requests: self.cut_requests,
            blocks,
            hit_blocks,
            hit_rate: if blocks == 0 { 0.0 } else { 100.0 * hit_blocks as f64 / blocks as f64 },
            hits,
            bytes,
            bandwidth,
            failures: failures.collect(),
            verified_blocks: self.verified_blocks,
            verify_failures: self.verify_failures,
            latency_us: Latencies {
                lookup: self.lookup.summary().into(),
                allocate: self.allocate.summary().into(),
                onboard: self.onboard.summary().into(),
            },
            evictions: status.pools.iter().map(|(&tier, pool)| (tier, pool.evictions)).collect(),
            restarts: 0,
            seconds: time.as_secs_f64(),
            timeline,
        }
    }
}

fn timed<T>(histogram: &LatencyHistogram, verb: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = verb();
    histogram.record(start.elapsed());
    result
}

/// Decides when to report.
struct Clock<P> {
    callback: P,
    progress: Progress,
    reported: Instant,
}

impl<P: FnMut(Progress) -> ControlFlow<()>> Clock<P> {
    fn new(total: u64, callback: P) -> Self {
        Self { callback, progress: Progress { done: 0, total }, reported: Instant::now() }
    }

    fn request_done(&mut self) -> Result<(), ReplayCancelled> {
        self.progress.done += 1;
        self.tick()
    }

    /// Reports if it is time.
    fn tick(&mut self) -> Result<(), ReplayCancelled> {
        if self.reported.elapsed() < PROGRESS_INTERVAL { Ok(()) } else { self.report() }
    }

    fn report(&mut self) -> Result<(), ReplayCancelled> {
        self.reported = Instant::now();
        match (self.callback)(self.progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => {
                let Progress { done, total } = self.progress;
                Err(ReplayCancelled { done, total })
            }
        }
    }
}
