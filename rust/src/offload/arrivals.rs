//! The caller's end of the way up: what it asks for, what it waits with, what it gets.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use crate::{
    metrics::LatencyHistogram,
    pool::{ImmutableSlots, MutableSlots},
    sync::{Arc, Mutex},
    transfer::{BlockResult, Transfer},
};

/// How a match is brought up.
#[derive(Debug, Default)]
pub struct OnboardOptions {
    /// Blocks at the start that the caller has already: they are neither copied nor returned.
    pub skip: usize,
    /// Slots of the first tier to copy into, in order, instead of newly allocated ones. Those that
    /// no block came into come back in [`Onboarded::unused`].
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
    /// Slots given in [`OnboardOptions::into`] that no block came into, in the order given. Those
    /// that a copy was tried into hold anything; those under a copy that has not ended yet are not
    /// among them and return to the pool by themselves.
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

/// An onboarding under way. `.await` it, [`wait`](Self::wait) for it, or drop it to give it up.
#[must_use = "dropping an onboarding gives it up"]
#[derive(Debug)]
pub struct Onboard {
    pub(super) transfer: Transfer,
    pub(super) arrivals: Arc<Arrivals>,
    /// When it was asked for, and where the time that it took is counted.
    pub(super) timing: Option<(Instant, Arc<LatencyHistogram>)>,
}

/// Where blocks of the first tier are collected, by position, until the caller takes them.
#[derive(Debug)]
pub(super) struct Arrivals {
    collected: Mutex<Collected>,
}

#[derive(Debug, Default)]
struct Collected {
    blocks: Vec<Option<ImmutableSlots>>,
    /// With their places among the slots given.
    unused: Vec<(usize, MutableSlots)>,
    /// The caller has what it gets: what comes later is not for it.
    taken: bool,
}

impl Arrivals {
    /// Starts with the blocks that are there.
    pub(super) fn new(blocks: Vec<Option<ImmutableSlots>>) -> Self {
        let collected = Collected { blocks, ..Collected::default() };
        Self { collected: Mutex::new(collected) }
    }

    /// A block has arrived. Later than its caller wants it, it goes on as an inactive block.
    pub(super) fn put(&self, position: usize, block: ImmutableSlots) {
        let mut collected = self.collected.lock();
        if !collected.taken
            && let Some(place) = collected.blocks.get_mut(position)
        {
            *place = Some(block);
        } else {
            // A release asks the pool: not under our lock.
            drop(collected);
            drop(block);
        }
    }

    /// No block came into this slot, the `place`-th of those given.
    pub(super) fn give_back(&self, place: usize, slot: MutableSlots) {
        let mut collected = self.collected.lock();
        if collected.taken {
            drop(collected);
            drop(slot);
        } else {
            collected.unused.push((place, slot));
        }
    }

    /// The prefix that is there, and the slots that were not needed. The rest is released.
    fn take(&self, results: Vec<BlockResult>) -> Onboarded {
        let (blocks, mut unused) = {
            let mut collected = self.collected.lock();
            collected.taken = true;
            (std::mem::take(&mut collected.blocks), std::mem::take(&mut collected.unused))
        };
        let arrived = results.iter().take_while(|result| result.is_ok()).count();
        let mut blocks = blocks.into_iter();
        let prefix: Vec<_> = blocks.by_ref().take(arrived).map_while(|block| block).collect();
        let prefix = ImmutableSlots::join(prefix);
        // Last first, like every release of a chain.
        blocks.rev().for_each(drop);
        unused.sort_unstable_by_key(|(place, _)| *place);
        let unused = MutableSlots::join(unused.into_iter().map(|(_, slot)| slot));
        Onboarded { blocks: prefix, results, unused }
    }
}

impl Onboard {
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
        // Over already, or nobody is left to want it. What was collected is released now, not
        // when a slow engine lets go of the copies.
        self.transfer.cancel();
        drop(self.arrivals.take(Vec::new()));
    }
}
