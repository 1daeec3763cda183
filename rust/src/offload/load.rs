//! The way up: a match becomes blocks in the first tier.
//!
//! Blocks that are there already stay where they are; the others are copied up, each verified
//! against its seal before it is registered. What comes back is the longest prefix that arrived,
//! by the deadline at the latest. Copies that arrive later are not lost: they are verified and
//! registered like the others and stay as inactive blocks.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use super::{Match, ResetEpoch, TierBlocks, counters::Counters};
use crate::{
    metrics::{EdgeMetrics, LatencyHistogram},
    pool::{ImmutableSlots, MutableSlots},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    transfer::{
        Arrival, BlockPair, BlockResult, DeadlineTimer, InOrder, Job, Transfer, TransferEngine,
        TransferError, TransferPlan, TransferSink, transfer,
    },
};

/// How a match is brought up.
#[derive(Debug, Default)]
pub struct OnboardOptions {
    /// Blocks at the start that the caller has already: they are neither copied nor returned.
    pub skip: usize,
    /// Slots of the first tier to copy into, in order, instead of newly allocated ones. Those that
    /// turn out not to be needed come back in [`Onboarded::unused`].
    pub into: Option<MutableSlots>,
    /// When to return with what has arrived.
    pub deadline: Option<Instant>,
}

/// What arrived.
#[derive(Debug)]
pub struct Onboarded {
    /// The longest prefix that is in the first tier now, after what was skipped; `None` when not
    /// even one block is.
    pub blocks: Option<ImmutableSlots>,
    /// What became of each block after those skipped, in order.
    pub results: Vec<BlockResult>,
    /// Slots given in [`OnboardOptions::into`] that no block came into.
    pub unused: Option<MutableSlots>,
}

impl Onboarded {
    /// Blocks of the prefix.
    pub fn len(&self) -> usize {
        self.blocks.as_ref().map_or(0, ImmutableSlots::len)
    }

    /// Whether nothing arrived.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The way from `lower` up to `upper`.
#[derive(Clone)]
pub(crate) struct LoadEdge {
    inner: Arc<Inner>,
}

struct Inner {
    upper: Arc<TierBlocks>,
    lower: Arc<TierBlocks>,
    engine: Arc<dyn TransferEngine>,
    timer: DeadlineTimer,
    resets: ResetEpoch,
    counters: Counters,
    in_flight: AtomicUsize,
}

/// An onboarding under way. `.await` it, [`wait`](Self::wait) for it, or drop it to give it up.
#[must_use = "dropping an onboarding gives it up"]
#[derive(Debug)]
pub struct Onboard {
    transfer: Transfer,
    arrivals: Arc<Arrivals>,
    /// When it was asked for, and where the time that it took is counted.
    timing: Option<(Instant, Arc<LatencyHistogram>)>,
}

/// Where blocks of the first tier are collected, by position.
#[derive(Debug)]
struct Arrivals {
    blocks: Mutex<Collected>,
}

#[derive(Debug, Default)]
struct Collected {
    blocks: Vec<Option<ImmutableSlots>>,
    unused: Option<MutableSlots>,
    /// The caller has its prefix: later arrivals are not for it.
    taken: bool,
}

/// A block on its way up.
struct Incoming {
    position: usize,
    source: ImmutableSlots,
    target: MutableSlots,
}

impl LoadEdge {
    pub(crate) fn new(
        upper: Arc<TierBlocks>,
        lower: Arc<TierBlocks>,
        engine: Arc<dyn TransferEngine>,
        timer: DeadlineTimer,
        resets: ResetEpoch,
    ) -> Self {
        let (counters, in_flight) = (Counters::default(), AtomicUsize::new(0));
        Self { inner: Arc::new(Inner { upper, lower, engine, timer, resets, counters, in_flight }) }
    }

    /// Starts to bring a match up.
    pub(crate) fn onboard(&self, found: Match, options: OnboardOptions) -> Onboard {
        let OnboardOptions { skip, into, deadline } = options;
        let blocks: Vec<ImmutableSlots> = found
            .into_segments()
            .into_iter()
            .flat_map(ImmutableSlots::into_singles)
            .skip(skip)
            .collect();
        let (transfer, sink) = transfer(blocks.len(), deadline, &self.inner.timer);
        let mut collected = Collected::default();
        let mut missing = Vec::new();
        for (position, block) in blocks.into_iter().enumerate() {
            let there = block.pool().tier() == self.inner.upper.tier();
            if there {
                collected.blocks.push(Some(block));
                sink.set(position, Ok(Arrival::Present));
            } else {
                collected.blocks.push(None);
                missing.push((position, block));
            }
        }
        let epoch = self.inner.resets.enter();
        let mut targets = match into {
            Some(into) => into,
            None => self.inner.upper.pool().allocate_up_to(missing.len()),
        };
        if !epoch.is_some_and(|epoch| self.inner.resets.holds(epoch)) {
            for (position, block) in missing.drain(..) {
                let (tier, block_id) = (self.inner.lower.tier(), block.ids()[0]);
                sink.set(position, Err(TransferError::Stale { tier, block_id }));
            }
        }
        if targets.len() > missing.len() {
            collected.unused = Some(targets.split_off(missing.len()));
        }
        for (position, _) in missing.split_off(targets.len()) {
            let error = TransferError::NoRoom { tier: self.inner.upper.tier() };
            self.inner.counters.failed(&error);
            sink.set(position, Err(error));
        }
        let incoming = missing
            .into_iter()
            .zip(targets.into_singles())
            .map(|((position, source), target)| Incoming { position, source, target })
            .collect();
        let arrivals = Arc::new(Arrivals { blocks: Mutex::new(collected) });
        self.inner.submit(incoming, sink, arrivals.clone());
        Onboard { transfer, arrivals, timing: None }
    }

    pub(crate) fn metrics(&self) -> EdgeMetrics {
        self.inner.counters.metrics(self.inner.in_flight.load(Ordering::Relaxed))
    }
}

impl Inner {
    fn submit(
        self: &Arc<Self>,
        incoming: Vec<Incoming>,
        sink: TransferSink,
        arrivals: Arc<Arrivals>,
    ) {
        if incoming.is_empty() {
            return;
        }
        let fail = |error: &TransferError, incoming: &[Incoming]| {
            for block in incoming {
                self.counters.failed(error);
                sink.set(block.position, Err(error.clone()));
            }
        };
        let foreign = incoming.iter().any(|block| !block.target.belongs_to(self.upper.pool()));
        if foreign {
            let error = TransferError::NoRoute {
                from: self.lower.tier(),
                to: self.upper.tier(),
                reason: "the slots given to copy into belong to another pool",
            };
            return fail(&error, &incoming);
        }
        let pairs = incoming
            .iter()
            .map(|block| BlockPair { from: block.source.ids()[0], to: block.target.ids()[0] })
            .collect();
        let plan =
            TransferPlan::new(self.lower.memory().clone(), self.upper.memory().clone(), pairs);
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => return fail(&error.into(), &incoming),
        };
        let positions: Vec<usize> = incoming.iter().map(|block| block.position).collect();
        let count = incoming.len();
        self.in_flight.fetch_add(count, Ordering::Relaxed);
        let rows: Vec<_> = incoming.into_iter().map(|block| Mutex::new(Some(block))).collect();
        let (edge, ticket, results) = (self.clone(), sink.ticket().clone(), sink.clone());
        let reports = InOrder::new(count, move |index, report| {
            let Some(block) = rows[index].lock().take() else { return };
            edge.in_flight.fetch_sub(1, Ordering::Relaxed);
            let position = block.position;
            let result = edge.land(block, report).map(|arrived| {
                arrivals.put(position, arrived);
                Arrival::Copied
            });
            match &result {
                Ok(_) => edge.counters.arrived(edge.upper.memory().layout().block_bytes()),
                Err(error) => edge.counters.failed(error),
            }
            results.set(position, result);
        });
        if let Err((error, job)) = self.engine.submit(Job::new(plan, ticket, Arc::new(reports))) {
            drop(job);
            self.in_flight.fetch_sub(count, Ordering::Relaxed);
            for position in positions {
                self.counters.failed(&error);
                sink.set(position, Err(error.clone()));
            }
        }
    }

    /// A copy has ended: verify, then register.
    fn land(
        &self,
        block: Incoming,
        report: Result<Box<[u64]>, TransferError>,
    ) -> Result<ImmutableSlots, TransferError> {
        let Incoming { source, target, .. } = block;
        let sums = report?;
        let from = source.ids()[0];
        let stale = |tier, block_id| TransferError::Stale { tier, block_id };
        // A reset during the copy: the bytes are of the past, whichever tier it hit.
        if source.are_current() != [true] {
            return Err(stale(self.lower.tier(), from));
        }
        let registration = source.registrations()[0];
        if !self.lower.proves(from, registration.key, &sums) {
            tracing::error!(
                tier = %self.lower.tier(), block = from, key = %registration.key.hash,
                "bytes fail verification: quarantined"
            );
            source.quarantine();
            return Err(TransferError::VerificationFailed {
                tier: self.lower.tier(),
                block_id: from,
            });
        }
        let to = target.ids()[0];
        match self.upper.pool().register(target, &[registration]) {
            Ok(arrived) => Ok(arrived),
            Err((_, target)) => {
                drop(target);
                Err(stale(self.upper.tier(), to))
            }
        }
    }
}

impl Arrivals {
    fn put(&self, position: usize, block: ImmutableSlots) {
        let mut collected = self.blocks.lock();
        if collected.taken {
            // Released outside the lock: it goes on as an inactive block.
            drop(collected);
            return;
        }
        collected.blocks[position] = Some(block);
    }

    /// The prefix that is there, and the slots that were not needed. The rest is released.
    fn take(&self, results: Vec<BlockResult>) -> Onboarded {
        let (collected, unused) = {
            let mut state = self.blocks.lock();
            state.taken = true;
            (std::mem::take(&mut state.blocks), state.unused.take())
        };
        let arrived = results.iter().take_while(|result| result.is_ok()).count();
        let mut collected = collected.into_iter();
        let prefix: Vec<_> = collected.by_ref().take(arrived).map_while(|block| block).collect();
        let blocks = ImmutableSlots::join(prefix);
        // Last first, like every release of a chain.
        collected.rev().for_each(drop);
        Onboarded { blocks, results, unused }
    }
}

impl Onboard {
    /// An onboarding of a match that is all in the first tier, with no tier below it.
    pub(crate) fn in_place(found: Match, options: OnboardOptions) -> Self {
        let singles = found.into_segments().into_iter().flat_map(ImmutableSlots::into_singles);
        let blocks: Vec<_> = singles.skip(options.skip).map(Some).collect();
        let transfer = Transfer::finished(vec![Ok(Arrival::Present); blocks.len()]);
        let collected = Collected { blocks, unused: options.into, taken: false };
        let arrivals = Arc::new(Arrivals { blocks: Mutex::new(collected) });
        Self { transfer, arrivals, timing: None }
    }

    /// Counts the time since `begun` in `histogram` when somebody takes the result.
    pub(crate) fn timed(mut self, begun: Instant, histogram: Arc<LatencyHistogram>) -> Self {
        self.timing = Some((begun, histogram));
        self
    }

    fn finish(&mut self, results: Vec<BlockResult>) -> Onboarded {
        if let Some((begun, histogram)) = self.timing.take() {
            histogram.record(begun.elapsed());
        }
        self.arrivals.take(results)
    }

    /// Waits until every block has arrived or failed, at most `timeout` and never past the
    /// deadline; gives the onboarding back when `timeout` came first.
    ///
    /// # Errors
    /// The onboarding itself, still under way.
    pub fn wait(mut self, timeout: Option<Duration>) -> Result<Onboarded, Self> {
        match self.transfer.wait(timeout) {
            Some(results) => Ok(self.finish(results)),
            None => Err(self),
        }
    }

    /// Ends the onboarding now; waiting for it then gives what had arrived.
    pub fn cancel(&self) {
        self.transfer.cancel();
    }
}

impl Future for Onboard {
    type Output = Onboarded;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match Pin::new(&mut self.transfer).poll(context) {
            Poll::Ready(results) => Poll::Ready(self.finish(results)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Onboard {
    fn drop(&mut self) {
        // Over already, or nobody is left to want it.
        self.transfer.cancel();
    }
}
