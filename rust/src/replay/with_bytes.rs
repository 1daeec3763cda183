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
//! beside that: a policy that tells blocks used once from blocks used again can do so. The same holds
//! for a block that came from disk and is kept in the host tier on its way.
//!
//! With restarts the manager is shut down and made anew every so many requests; a disk tier then
//! has what it had, and memory has nothing. Figures are those of all managers together.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::{
    ByteReplay, ByteReplayOptions, Latencies, Progress, ReplayCancelled, ReplayError, Sample,
    Trace, keys::Keys, pattern,
};
use crate::{
    config::Tier,
    manager::{
        BlockPool, BlockPoolError, ImmutableBlock, KvBlockManager, KvBlockManagerConfig,
        ManagerError,
    },
    metrics::{BlockManagerMetrics, Edge, LatencyHistogram},
    offload::{Match, OnboardOptions, Onboarded},
    pool::{ImmutableSlots, Registration},
    tokens::{Key, SequenceHash},
    transfer::Arrival,
};

/// Samples of the timeline.
const SAMPLES: usize = 100;

/// Time between two calls of the progress callback, which is also how long a cancellation waits.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(10);

/// How long the end of a manager waits for what is on its way, which is nothing.
const LAST_FLUSH: Duration = Duration::from_secs(60);

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
    let config = options.manager(trace)?;
    let manager = KvBlockManager::new_blocking(config.clone())?;
    let device = manager.device().ok_or(ReplayError::NoDevice)?.clone();
    let clock = Clock::new(trace.len() as u64, progress);
    let start = Instant::now();
    let mut replay = Replay {
        config,
        manager,
        device,
        past: Past::default(),
        verify: options.verify,
        clock,
        total: Sample::default(),
        cut_requests: 0,
        verified_blocks: 0,
        verify_failures: 0,
        lookup: LatencyHistogram::new(),
        allocate: LatencyHistogram::new(),
        onboard: LatencyHistogram::new(),
        waited: BTreeMap::new(),
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
        let done = index as u64 + 1;
        let due = options.restart_every.is_some_and(|every| done.is_multiple_of(every.get()));
        if due && done < trace.len() as u64 {
            replay.restart()?;
        }
    }
    replay.clock.report()?;
    replay.past.add(&replay.manager.status());
    replay.manager.shutdown_blocking(LAST_FLUSH);
    Ok(replay.result(trace, options, timeline, start.elapsed()))
}

struct Replay<P> {
    config: KvBlockManagerConfig,
    manager: KvBlockManager,
    device: BlockPool,
    past: Past,
    verify: bool,
    clock: Clock<P>,
    total: Sample,
    cut_requests: u64,
    verified_blocks: u64,
    verify_failures: u64,
    lookup: LatencyHistogram,
    allocate: LatencyHistogram,
    onboard: LatencyHistogram,
    /// Time spent waiting for copies.
    waited: BTreeMap<Edge, Duration>,
}

/// What the managers so far have done.
#[derive(Default)]
struct Past {
    restarts: u64,
    edges: BTreeMap<Edge, (u64, BTreeMap<&'static str, u64>)>,
    evictions: BTreeMap<Tier, u64>,
    capacity: BTreeMap<Tier, u64>,
    disk_written_bytes: u64,
    disk_hits: u64,
}

impl Past {
    fn add(&mut self, status: &BlockManagerMetrics) {
        for (&edge, figures) in &status.edges {
            let (bytes, failures) = self.edges.entry(edge).or_default();
            *bytes += figures.bytes;
            for (&reason, blocks) in &figures.failures {
                *failures.entry(reason).or_default() += blocks;
            }
        }
        for (&tier, pool) in &status.pools {
            *self.evictions.entry(tier).or_default() += pool.evictions;
            self.capacity.insert(tier, pool.capacity);
        }
        for drive in &status.drives {
            self.disk_written_bytes += drive.written_bytes;
            self.disk_hits += drive.hits;
        }
    }
}

/// The tiers below the first, with which blocks each has newly got.
type Stored = Vec<(Tier, Vec<bool>)>;

impl<P: FnMut(Progress) -> ControlFlow<()>> Replay<P> {
    /// Ends the manager and makes the next one.
    fn restart(&mut self) -> Result<(), ReplayError> {
        self.past.restarts += 1;
        self.past.add(&self.manager.status());
        self.manager.shutdown_blocking(LAST_FLUSH);
        self.manager = KvBlockManager::new_blocking(self.config.clone())?;
        self.device = self.manager.device().ok_or(ReplayError::NoDevice)?.clone();
        Ok(())
    }

    fn wait(&mut self, from: Tier, to: Tier, time: Duration) {
        *self.waited.entry(Edge { from, to }).or_default() += time;
    }

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
        self.touch_below(served, &tiers[..hits], &stored)
    }

    /// Brings what was found to the device and checks it; the prefix that is good.
    fn bring(
        &mut self,
        found: Match,
        keys: &[SequenceHash],
    ) -> Result<Option<ImmutableSlots>, ReplayError> {
        let lower = [Tier::Host, Tier::Disk].map(|tier| (tier, found.count(tier) > 0));
        let start = Instant::now();
        let mut under_way = self.manager.start_onboard(found, OnboardOptions::default())?;
        let Onboarded { blocks, .. } = loop {
            match under_way.wait(Some(PROGRESS_INTERVAL)) {
                Ok(onboarded) => break onboarded,
                Err(still) => under_way = still,
            }
            self.clock.tick()?;
        };
        let time = start.elapsed();
        if lower.iter().any(|(_, used)| *used) {
            self.onboard.record(time);
        }
        for (tier, _) in lower.into_iter().filter(|(_, used)| *used) {
            self.wait(tier, Tier::Device, time);
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
    ) -> Result<(Vec<ImmutableBlock>, Stored), ReplayError> {
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
        let before = self.below(&keys[hits..]);
        let registrations = Registration::chain(keys, 0, None);
        let blocks = self
            .device
            .register_blocks_as(blocks, &registrations[hits..])
            .map_err(BlockPoolError::from)?;
        let stored = self.store(&blocks, before)?;
        Ok((blocks, stored))
    }

    /// Which of `keys` each lower tier does not have.
    fn below(&self, keys: &[SequenceHash]) -> Stored {
        let keys: Vec<Key> = keys.iter().copied().map(Key::from).collect();
        let lower = [self.manager.host(), self.manager.disk()];
        let lacks = |pool: &BlockPool| {
            let present = pool.blocks().pool().contains(&keys);
            (pool.tier(), present.into_iter().map(|present| !present).collect())
        };
        lower.into_iter().flatten().map(lacks).collect()
    }

    /// Copies blocks down and waits; which have newly come into each lower tier, where `lacked` says
    /// what each did not have before.
    fn store(
        &mut self,
        blocks: &[ImmutableBlock],
        mut lacked: Stored,
    ) -> Result<Stored, ReplayError> {
        let start = Instant::now();
        let transfer = match self.manager.offload(blocks) {
            Err(ManagerError::NoSuchTier { .. }) => return Ok(Vec::new()),
            transfer => transfer?,
        };
        let results = loop {
            if let Some(results) = transfer.wait(Some(PROGRESS_INTERVAL)) {
                break results;
            }
            self.clock.tick()?;
        };
        let next = if self.manager.host().is_some() { Tier::Host } else { Tier::Disk };
        self.wait(Tier::Device, next, start.elapsed());
        if self.manager.disk().is_none() {
            let new = results.iter().map(|result| *result == Ok(Arrival::Copied)).collect();
            return Ok(vec![(Tier::Host, new)]);
        }
        if next == Tier::Host {
            let start = Instant::now();
            self.flush()?;
            self.wait(Tier::Host, Tier::Disk, start.elapsed());
        }
        for (_, new) in &mut lacked {
            new.iter_mut().zip(&results).for_each(|(new, result)| *new &= result.is_ok());
        }
        Ok(lacked)
    }

    /// Waits until what goes down by itself has arrived, or there is no room for it.
    fn flush(&mut self) -> Result<(), ReplayError> {
        loop {
            let start = Instant::now();
            let left = self.manager.flush_blocking(PROGRESS_INTERVAL)?;
            if left == 0 || start.elapsed() < PROGRESS_INTERVAL {
                return Ok(());
            }
            self.clock.tick()?;
        }
    }

    /// Tells the lower tiers that the request's blocks were used, except for those that this
    /// request has just put there.
    fn touch_below(
        &self,
        served: &[SequenceHash],
        found_in: &[Tier],
        stored: &[(Tier, Vec<bool>)],
    ) -> Result<(), ReplayError> {
        let (prefix, rest) = served.split_at(found_in.len());
        for pool in [self.manager.host(), self.manager.disk()].into_iter().flatten() {
            let tier = pool.tier();
            // Of what was found further down, this tier has got a copy only now.
            let prefix = prefix.iter().zip(found_in).filter(|(_, found)| **found <= tier);
            let new = stored.iter().find(|(of, _)| *of == tier).map(|(_, new)| new);
            let before = rest.iter().zip(new.into_iter().flatten()).filter(|(_, new)| !**new);
            let used = prefix.map(|(key, _)| key).chain(before.map(|(key, _)| key));
            let used: Vec<SequenceHash> = used.copied().collect();
            pool.touch_blocks_blocking(&used)?;
        }
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
        let Past { restarts, edges, evictions, capacity, disk_written_bytes, disk_hits } =
            self.past;
        let bytes: BTreeMap<Edge, u64> =
            edges.iter().map(|(&edge, (bytes, _))| (edge, *bytes)).collect();
        let bandwidth = self.waited.iter().filter_map(|(&edge, time)| {
            let bytes = *bytes.get(&edge)?;
            (bytes > 0).then(|| (edge, bytes as f64 / time.as_secs_f64()))
        });
        let bandwidth = bandwidth.collect();
        let failures = edges.into_iter().filter_map(|(edge, (_, mut failures))| {
            failures.retain(|_, blocks| *blocks > 0);
            (!failures.is_empty()).then_some((edge, failures))
        });
        ByteReplay {
            trace: trace.name().to_owned(),
            policy: options.policy,
            unique_blocks: trace.unique_blocks(),
            bytes_per_block: options.bytes_per_block,
            capacity_blocks: capacity,
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
            evictions,
            disk_written_bytes,
            disk_written_bytes_per_hit: (disk_hits > 0)
                .then(|| disk_written_bytes as f64 / disk_hits as f64),
            restarts,
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
