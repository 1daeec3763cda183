//! Replay without bytes: what hit rate would a cache of this size and policy have?
//!
//! One tier, no pool: slots, the policy, and which block is where. The rules are those of the
//! published comparisons: a request's hits are the blocks of its longest prefix whose blocks are
//! all resident when it arrives; then each of its blocks, last first, is touched or inserted.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::trace::{Request, Trace};
use crate::config::EvictionKind;
use crate::eviction::EvictionPolicy;

/// No slot.
const ABSENT: u32 = u32::MAX;

/// Time between two calls of the progress callback.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(10);

/// Block visits between two looks at the clock.
const VISITS_PER_LOOK: usize = 4096;

/// The outcome for one trace, policy and capacity.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct IndexReplay {
    /// Name of the trace.
    pub trace: String,
    /// The policy.
    pub policy: EvictionKind,
    /// Size of the cache, as asked for.
    pub capacity_blocks: u64,
    /// Different blocks in the trace.
    pub unique_blocks: u32,
    /// Requests replayed.
    pub requests: u64,
    /// Blocks asked for.
    pub blocks: u64,
    /// Blocks found, as part of a resident prefix.
    pub hit_blocks: u64,
    /// Percent of `blocks` that were found; 0 for a trace without blocks.
    pub hit_rate: f64,
    /// Time taken, in seconds.
    pub seconds: f64,
}

/// How far a replay or a sweep has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Requests done, over all points of a sweep.
    pub done: u64,
    /// Requests to do, over all points of a sweep.
    pub total: u64,
}

/// The progress callback asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("replay was cancelled after {done} of {total} requests")]
pub struct ReplayCancelled {
    /// Requests done.
    pub done: u64,
    /// Requests to do.
    pub total: u64,
}

/// Replays `trace` against a cache of `capacity_blocks` under `policy`.
///
/// Memory goes with the smaller of capacity and unique blocks, so any capacity will do. `progress`
/// is called about every 10 ms and once at the end; `Break` ends the replay.
pub fn index_only(
    trace: &Trace,
    policy: EvictionKind,
    capacity_blocks: u64,
    mut progress: impl FnMut(Progress) -> ControlFlow<()>,
) -> Result<IndexReplay, ReplayCancelled> {
    let mut clock = Clock::new(trace.len() as u64);
    let point = run(trace, policy, capacity_blocks, &mut clock, &mut progress)?;
    clock.report(&mut progress)?;
    Ok(point)
}

/// Replays `trace` at every capacity under every policy: all capacities of the first policy, then
/// those of the next. `progress` counts over all of them.
pub fn sweep(
    trace: &Trace,
    capacities: &[u64],
    policies: &[EvictionKind],
    mut progress: impl FnMut(Progress) -> ControlFlow<()>,
) -> Result<Vec<IndexReplay>, ReplayCancelled> {
    let points = capacities.len() * policies.len();
    let mut clock = Clock::new(trace.len() as u64 * points as u64);
    let mut results = Vec::with_capacity(points);
    for &policy in policies {
        for &capacity in capacities {
            results.push(run(trace, policy, capacity, &mut clock, &mut progress)?);
        }
    }
    clock.report(&mut progress)?;
    Ok(results)
}

fn run(
    trace: &Trace,
    policy: EvictionKind,
    capacity_blocks: u64,
    clock: &mut Clock,
    progress: &mut impl FnMut(Progress) -> ControlFlow<()>,
) -> Result<IndexReplay, ReplayCancelled> {
    let start = Instant::now();
    // More slots than blocks would never be used, and a policy that never evicts needs no state
    // beyond them.
    let slots = u64::from(trace.unique_blocks()).min(capacity_blocks) as u32;
    let mut cache = Cache::new(trace.unique_blocks(), slots, policy);
    let mut hit_blocks = 0;
    for request in trace.requests() {
        hit_blocks += cache.serve(request);
        clock.advance(request.blocks.len(), progress)?;
    }
    let blocks = trace.blocks();
    Ok(IndexReplay {
        trace: trace.name().to_owned(),
        policy,
        capacity_blocks,
        unique_blocks: trace.unique_blocks(),
        requests: trace.len() as u64,
        blocks,
        hit_blocks,
        hit_rate: if blocks == 0 { 0.0 } else { 100.0 * hit_blocks as f64 / blocks as f64 },
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// One tier of slots.
struct Cache {
    /// Slot of each block, or [`ABSENT`]: block numbers are dense, so this array is the index.
    slot_of: Vec<u32>,
    /// Block of each slot that was used.
    block_of: Vec<u32>,
    slots: usize,
    policy: Box<dyn EvictionPolicy>,
}

impl Cache {
    fn new(unique_blocks: u32, slots: u32, policy: EvictionKind) -> Self {
        Self {
            slot_of: vec![ABSENT; unique_blocks as usize],
            block_of: Vec::with_capacity(slots as usize),
            slots: slots as usize,
            policy: policy.build(slots),
        }
    }

    /// The number of hits.
    fn serve(&mut self, request: Request<'_>) -> u64 {
        let resident = |block: &&u32| self.slot_of[**block as usize] != ABSENT;
        let hits = request.blocks.iter().take_while(resident).count() as u64;
        for &block in request.blocks.iter().rev() {
            match self.slot_of[block as usize] {
                ABSENT => self.admit(block),
                slot => self.policy.touch(slot),
            }
        }
        hits
    }

    fn admit(&mut self, block: u32) {
        let slot = if self.block_of.len() < self.slots {
            self.block_of.push(block);
            self.block_of.len() as u32 - 1
        } else {
            let Some(victim) = self.policy.evict() else { return };
            let old = std::mem::replace(&mut self.block_of[victim as usize], block);
            self.slot_of[old as usize] = ABSENT;
            victim
        };
        self.slot_of[block as usize] = slot;
        self.policy.insert(slot, u64::from(block));
    }
}

/// Decides when to report.
struct Clock {
    progress: Progress,
    visits: usize,
    reported: Instant,
}

impl Clock {
    fn new(total: u64) -> Self {
        Self { progress: Progress { done: 0, total }, visits: 0, reported: Instant::now() }
    }

    /// One more request, of so many visits, is done.
    fn advance(
        &mut self,
        visits: usize,
        progress: &mut impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), ReplayCancelled> {
        self.progress.done += 1;
        // An empty request costs something, too.
        self.visits += visits + 1;
        if self.visits < VISITS_PER_LOOK {
            return Ok(());
        }
        self.visits = 0;
        if self.reported.elapsed() < PROGRESS_INTERVAL {
            return Ok(());
        }
        self.report(progress)
    }

    fn report(
        &mut self,
        progress: &mut impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<(), ReplayCancelled> {
        self.reported = Instant::now();
        match progress(self.progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => {
                let Progress { done, total } = self.progress;
                Err(ReplayCancelled { done, total })
            }
        }
    }
}
