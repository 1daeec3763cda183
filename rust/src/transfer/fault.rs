//! An engine that misbehaves on purpose, by seed.
//!
//! [`FaultEngine`] wears any engine. It can fail copies, flip a bit, tear a copy (the tail of the
//! target keeps what it held before), delay jobs, and hang until told to go on. Which copies are
//! hit depends on the seed and the running number of the copy alone, so a run with one submitting
//! thread can be repeated; every injected error names both.
//!
//! It is for tests and drills. Corrupted bytes are really in memory: the only thing that protects
//! a reader is the verification that is being tested.
#![allow(unsafe_code)]

use std::{
    mem,
    time::{Duration, Instant},
};

use super::{
    BlockMemory, BlockPair, Job, Reports, TransferEngine, TransferError, TransferPlan,
    tiles::sum_block,
    timer::{DeadlineTimer, Expire, Watch},
};
use crate::{
    layout::Span,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

/// When corruption strikes, which decides who can notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Corruption {
    /// On the way: the reported sums are those of the corrupted bytes.
    InTransit,
    /// After the copy, where the bytes rest: the reported sums are those of the good bytes, and
    /// only the next arrival can notice.
    AtRest,
}

/// What goes wrong, and how often.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Decides which copies are hit.
    pub seed: u64,
    /// Share of copies that fail, 0 to 1.
    pub errors: f64,
    /// Share of copies with one bit flipped, 0 to 1.
    pub flips: f64,
    /// Share of copies whose second half never happened, 0 to 1.
    pub tears: f64,
    /// When flips and tears strike.
    pub corruption: Corruption,
    /// How long each job waits before it starts.
    pub latency: Duration,
}

impl Faults {
    /// No faults; set the fields that should be otherwise.
    pub fn none(seed: u64) -> Self {
        Self {
            seed,
            errors: 0.0,
            flips: 0.0,
            tears: 0.0,
            corruption: Corruption::InTransit,
            latency: Duration::ZERO,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    Error,
    Flip(u64),
    Tear,
}

/// An engine in a bad mood; see the module documentation.
pub struct FaultEngine {
    name: String,
    inner: Arc<dyn TransferEngine>,
    faults: Mutex<Faults>,
    copies: AtomicU64,
    injected: Arc<AtomicU64>,
    stalled: Mutex<Option<Vec<Job>>>,
    delayed: Mutex<Vec<Arc<Delayed>>>,
    timer: DeadlineTimer,
}

impl FaultEngine {
    /// `inner` with `faults`.
    pub fn new(inner: Arc<dyn TransferEngine>, faults: Faults) -> Self {
        Self {
            name: format!("{} with faults", inner.name()),
            inner,
            faults: Mutex::new(faults),
            copies: AtomicU64::new(0),
            injected: Arc::new(AtomicU64::new(0)),
            stalled: Mutex::new(None),
            delayed: Mutex::new(Vec::new()),
            timer: DeadlineTimer::new(),
        }
    }

    /// Other faults from the next job on.
    pub fn set_faults(&self, faults: Faults) {
        *self.faults.lock() = faults;
    }

    /// Copies that were failed or corrupted so far.
    pub fn injected(&self) -> u64 {
        self.injected.load(Ordering::Relaxed)
    }

    /// Accepts jobs and does nothing about them until [`resume`](Self::resume): a hung device.
    pub fn stall(&self) {
        self.stalled.lock().get_or_insert_default();
    }

    /// Starts what was held back, in order, and stalls no more.
    pub fn resume(&self) {
        // Sent with the lock released: a refusal is reported, and whoever learns of it may submit.
        let held = self.stalled.lock().take().unwrap_or_default();
        for job in held {
            send(&*self.inner, job);
        }
    }
}

impl Faults {
    /// What happens to copy number `copy`.
    fn decide(&self, copy: u64) -> Fault {
        let mut random = self.seed ^ copy.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut chance = |share: f64| {
            random = mix(random);
            (random >> 11) as f64 / ((1_u64 << 53) as f64) < share
        };
        if chance(self.errors) {
            Fault::Error
        } else if chance(self.flips) {
            Fault::Flip(mix(copy ^ self.seed))
        } else if chance(self.tears) {
            Fault::Tear
        } else {
            Fault::None
        }
    }
}

// SAFETY: jobs go to an engine that keeps the contract, or are refused uncopied. The target of a
// pair is touched before the pair is passed on and before its report is, never after.
unsafe impl TransferEngine for FaultEngine {
    fn name(&self) -> &str {
        &self.name
    }

    fn submit(&self, job: Job) -> Result<(), (TransferError, Job)> {
        let faults = self.faults.lock().clone();
        if faults.flips > 0.0 || faults.tears > 0.0 {
            // Corruption is done by the CPU.
            let target = job.plan().to().memory();
            let reachable = target.map(|memory| memory.check_accessible());
            match reachable {
                Some(Ok(())) => {}
                Some(Err(error)) => return Err((error.into(), job)),
                None => return Err((job.plan().not_served(&self.name), job)),
            }
        }
        let (plan, ticket, reports) = job.into_parts();
        let mut passed = Passed {
            outer: reports,
            plan: plan.clone(),
            corruption: faults.corruption,
            injected: self.injected.clone(),
            copies: Vec::new(),
        };
        let mut pairs = Vec::new();
        for (index, &pair) in plan.pairs().iter().enumerate() {
            let copy = self.copies.fetch_add(1, Ordering::Relaxed);
            let fault = faults.decide(copy);
            if fault == Fault::Error {
                self.injected.fetch_add(1, Ordering::Relaxed);
                let error = TransferError::Injected { seed: faults.seed, copy };
                passed.outer.report(index, Err(error));
                continue;
            }
            let before = match plan.to().memory() {
                Some(memory) if fault == Fault::Tear => tail(memory, pair),
                _ => Vec::new(),
            };
            passed.copies.push(Copy { index, pair, fault, before });
            pairs.push(pair);
        }
        let job = Job::new(plan.with_pairs(pairs), ticket, Arc::new(passed));
        if let Some(held) = &mut *self.stalled.lock() {
            held.push(job);
        } else if faults.latency.is_zero() {
            send(&*self.inner, job);
        } else {
            let delayed = Arc::new(Delayed {
                job: Mutex::new(Some(job)),
                inner: self.inner.clone(),
                watch: Mutex::new(None),
            });
            let target: Arc<dyn Expire> = delayed.clone();
            let due = Instant::now().checked_add(faults.latency);
            let watch = due.and_then(|due| self.timer.watch(due, Arc::downgrade(&target)));
            if watch.is_none() {
                // No such time, or no thread to wait for it: late is better than never.
                delayed.expire();
            }
            *delayed.watch.lock() = watch;
            let mut waiting = self.delayed.lock();
            waiting.retain(|delayed| delayed.job.lock().is_some());
            waiting.push(delayed);
        }
        Ok(())
    }
}

impl Drop for FaultEngine {
    fn drop(&mut self) {
        let stalled = self.stalled.lock().take().unwrap_or_default();
        let delayed = mem::take(&mut *self.delayed.lock());
        let delayed = delayed.iter().filter_map(|delayed| delayed.job.lock().take());
        for job in stalled.into_iter().chain(delayed) {
            job.refuse(&TransferError::EngineStopped);
        }
    }
}

/// A decorator cannot hand a job back once it has changed it: a refusal becomes its result.
fn send(engine: &dyn TransferEngine, job: Job) {
    if let Err((error, job)) = engine.submit(job) {
        job.refuse(&error);
    }
}

/// A job that waits for its time.
struct Delayed {
    job: Mutex<Option<Job>>,
    inner: Arc<dyn TransferEngine>,
    watch: Mutex<Option<Watch>>,
}

impl Expire for Delayed {
    fn expire(&self) {
        let job = self.job.lock().take();
        if let Some(job) = job {
            send(&*self.inner, job);
        }
    }
}

/// The reports of the copies that were passed on, corrupted on their way back.
struct Passed {
    outer: Arc<dyn Reports>,
    plan: TransferPlan,
    corruption: Corruption,
    injected: Arc<AtomicU64>,
    copies: Vec<Copy>,
}

struct Copy {
    /// Position in the caller's plan.
    index: usize,
    pair: BlockPair,
    fault: Fault,
    /// What the second half of the target held before.
    before: Vec<u8>,
}

impl Reports for Passed {
    fn report(&self, index: usize, result: Result<Box<[u64]>, TransferError>) {
        let Some(copy) = self.copies.get(index) else { return };
        let result = result.and_then(|sums| {
            let Some(memory) = self.plan.to().memory() else { return Ok(sums) };
            match copy.fault {
                Fault::Flip(random) => flip(memory, copy.pair, random),
                Fault::Tear => tear(memory, copy.pair, &copy.before),
                Fault::None | Fault::Error => return Ok(sums),
            }
            self.injected.fetch_add(1, Ordering::Relaxed);
            match self.corruption {
                Corruption::AtRest => Ok(sums),
                // SAFETY: the target slot belongs to this job until the outer report.
                Corruption::InTransit => Ok(unsafe { sum_block(memory, copy.pair.to) }?),
            }
        });
        self.outer.report(copy.index, result);
    }
}

fn spans(memory: &BlockMemory, pair: BlockPair) -> Vec<Span> {
    let layout = memory.layout();
    // The plan has checked the block, so the error cannot be.
    layout
        .spans(pair.to as usize, 0..layout.num_layers())
        .map(Iterator::collect)
        .unwrap_or_default()
}

fn flip(memory: &BlockMemory, pair: BlockPair, random: u64) {
    let mut byte = (random >> 3) as usize % memory.layout().block_bytes();
    for span in spans(memory, pair) {
        if byte < span.len {
            // SAFETY: within the span; the target slot belongs to the job being reported.
            unsafe { *memory.address(span).add(byte) ^= 1 << (random & 7) };
            return;
        }
        byte -= span.len;
    }
}

/// The second half of the target as it is now.
fn tail(memory: &BlockMemory, pair: BlockPair) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(memory.layout().block_bytes());
    for span in spans(memory, pair) {
        // SAFETY: within the span; the target slot belongs to the job being submitted.
        bytes.extend_from_slice(unsafe {
            std::slice::from_raw_parts(memory.address(span), span.len)
        });
    }
    bytes.split_off(bytes.len() / 2)
}

/// Puts `before` back into the second half of the target, as if the copy had stopped midway.
fn tear(memory: &BlockMemory, pair: BlockPair, before: &[u8]) {
    let mut skip = memory.layout().block_bytes() - before.len();
    let mut before = before;
    for span in spans(memory, pair) {
        let kept = skip.min(span.len);
        skip -= kept;
        let (here, rest) = before.split_at(span.len - kept);
        before = rest;
        // SAFETY: within the span; the target slot belongs to the job being reported.
        unsafe {
            std::ptr::copy_nonoverlapping(
                here.as_ptr(),
                memory.address(span).add(kept),
                here.len(),
            );
        }
    }
}

/// A bijective mixer (the finaliser of `SplitMix64`).
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
