//! The way down: from a tier to the next lower one.
//!
//! Two ways in. [`StoreEdge::offer`] is write-through: weak handles into a bounded queue, no
//! result. [`StoreEdge::offload`] is the caller's wish: strong handles, dispatched at once, a
//! result per block. Both meet in `in_flight`, where each key is copied once at a time and whoever
//! asks for it meanwhile waits for the same copy.
//!
//! Nothing here waits and no thread is used: the queue is served by whoever offers and by the
//! engine's thread that reports a copy's end.

use std::{
    collections::{HashMap, HashSet, VecDeque, hash_map::Entry},
    time::{Duration, Instant},
};

use super::{ResetEpoch, TierBlocks, counters::Counters};
use crate::{
    metrics::EdgeMetrics,
    pool::{ImmutableSlots, MutableSlots, Registration, WeakSlots},
    sync::{Arc, Condvar, Mutex},
    tokens::Key,
    transfer::{
        Arrival, BlockPair, BlockResult, DeadlineTimer, InOrder, Job, Ticket, Transfer,
        TransferEngine, TransferError, TransferPlan, TransferSink, transfer,
    },
};

/// How an edge is bounded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreOptions {
    /// Blocks that may wait to be written through.
    pub(crate) queue_blocks: usize,
    /// Blocks on their way at a time on behalf of the queue; each holds a slot on both sides.
    pub(crate) in_flight_blocks: usize,
}

/// What [`StoreEdge::flush`] achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlushReport {
    /// Blocks that were still waiting or on their way when time was up.
    pub(crate) unfinished: usize,
}

/// The way from `upper` down to `lower`.
#[derive(Clone)]
pub(crate) struct StoreEdge {
    inner: Arc<Inner>,
}

struct Inner {
    upper: Arc<TierBlocks>,
    lower: Arc<TierBlocks>,
    engine: Arc<dyn TransferEngine>,
    timer: DeadlineTimer,
    resets: ResetEpoch,
    options: StoreOptions,
    /// Stops the copies that nobody but the queue wants.
    background: Arc<Ticket>,
    counters: Counters,
    state: Mutex<State>,
    idle: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Queued>,
    queued: HashSet<Key>,
    /// By key: who waits for the copy under way.
    in_flight: HashMap<Key, Vec<Waiter>>,
    closed: bool,
}

struct Queued {
    key: Key,
    blocks: Arc<WeakSlots>,
    position: usize,
}

/// A caller who wants to know, and the block it holds meanwhile.
struct Waiter {
    sink: TransferSink,
    index: usize,
    source: ImmutableSlots,
}

/// A block that is about to be copied; its key is in `in_flight`.
struct Outgoing {
    registration: Registration,
    source: ImmutableSlots,
}

impl StoreEdge {
    pub(crate) fn new(
        upper: Arc<TierBlocks>,
        lower: Arc<TierBlocks>,
        engine: Arc<dyn TransferEngine>,
        timer: DeadlineTimer,
        resets: ResetEpoch,
        options: StoreOptions,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                upper,
                lower,
                engine,
                timer,
                resets,
                options,
                background: Arc::new(Ticket::new(None)),
                counters: Counters::default(),
                state: Mutex::default(),
                idle: Condvar::new(),
            }),
        }
    }

    /// Queues blocks to be written through when there is time. What does not fit the queue is
    /// dropped and counted.
    pub(crate) fn offer(&self, blocks: &ImmutableSlots) {
        let inner = &self.inner;
        let weak = Arc::new(blocks.downgrade());
        let registrations = blocks.registrations();
        let mut dropped = 0;
        {
            let mut state = inner.state.lock();
            if state.closed {
                return;
            }
            for (position, registration) in registrations.iter().enumerate() {
                let key = registration.key;
                if state.in_flight.contains_key(&key) || state.queued.contains(&key) {
                    continue;
                }
                if state.queue.len() >= inner.options.queue_blocks {
                    dropped += 1;
                    continue;
                }
                state.queued.insert(key);
                state.queue.push_back(Queued { key, blocks: weak.clone(), position });
            }
        }
        inner.counters.dropped(dropped);
        inner.pump();
    }

    /// Copies blocks down now. The result is `Present` for what the lower tier has already.
    pub(crate) fn offload(&self, blocks: &ImmutableSlots, deadline: Option<Instant>) -> Transfer {
        let (transfer, sink) = transfer(blocks.len(), deadline, &self.inner.timer);
        let current = blocks.are_current();
        let mut outgoing = Vec::with_capacity(blocks.len());
        for (index, registration) in blocks.registrations().into_iter().enumerate() {
            let waiter =
                Waiter { sink: sink.clone(), index, source: blocks.slice(index..index + 1) };
            if !current[index] {
                let error = TransferError::Stale {
                    tier: self.inner.upper.tier(),
                    block_id: blocks.ids()[index],
                };
                self.inner.counters.failed(&error);
                sink.set(index, Err(error));
            } else if let Some(ready) = self.inner.join(registration, waiter) {
                outgoing.push(ready);
            }
        }
        self.inner.begin(outgoing, sink.ticket());
        transfer
    }

    /// Waits until nothing is queued or on its way, at most `timeout`.
    pub(crate) fn flush(&self, timeout: Duration) -> FlushReport {
        let inner = &self.inner;
        let until = Instant::now().checked_add(timeout);
        loop {
            let no_room = inner.pump();
            let state = inner.state.lock();
            let idle = state.in_flight.is_empty();
            let unfinished = state.queue.len() + state.in_flight.len();
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            // What the lower tier has no room for would wait for ever.
            if unfinished == 0 || (idle && no_room) || left == Some(Duration::ZERO) {
                return FlushReport { unfinished };
            }
            if !idle {
                drop(match left {
                    Some(left) => inner.idle.wait_timeout(state, left),
                    None => inner.idle.wait(state),
                });
            }
        }
    }

    /// Takes no more, drops what is queued and stops what only the queue wanted.
    pub(crate) fn close(&self) {
        self.inner.background.cancel();
        let dropped = {
            let mut state = self.inner.state.lock();
            state.closed = true;
            state.queued.clear();
            std::mem::take(&mut state.queue).len()
        };
        self.inner.counters.dropped(dropped);
    }

    pub(crate) fn metrics(&self) -> EdgeMetrics {
        let queued = self.inner.state.lock().queue.len();
        self.inner.counters.metrics(queued)
    }
}

impl Inner {
    /// Serves the queue as far as the in-flight bound and the lower tier's room allow; returns
    /// whether it stopped for lack of room.
    fn pump(self: &Arc<Self>) -> bool {
        loop {
            let taken = self.take();
            if taken.is_empty() {
                return false;
            }
            let mut outgoing = Vec::with_capacity(taken.len());
            let mut gone = 0;
            for Queued { key, blocks, position } in taken {
                match blocks.upgrade(position) {
                    Some(source) => {
                        let registration = source.registrations()[0];
                        outgoing.push(Outgoing { registration, source });
                    }
                    None => {
                        gone += 1;
                        self.finish(key, &Err(TransferError::Cancelled));
                    }
                }
            }
            self.counters.dropped(gone);
            let background = self.background.clone();
            if self.begin(outgoing, &background) > 0 {
                // What was refused is queued again, for another time.
                return true;
            }
        }
    }

    /// Moves entries from the queue to `in_flight`.
    fn take(&self) -> Vec<Queued> {
        let mut state = self.state.lock();
        let mut taken = Vec::new();
        while state.in_flight.len() < self.options.in_flight_blocks {
            let Some(entry) = state.queue.pop_front() else { break };
            state.queued.remove(&entry.key);
            if !state.in_flight.contains_key(&entry.key) {
                state.in_flight.insert(entry.key, Vec::new());
                taken.push(entry);
            }
        }
        taken
    }

    /// Lets `waiter` wait for the copy of this key under way, or returns the block to be copied.
    fn join(&self, registration: Registration, waiter: Waiter) -> Option<Outgoing> {
        // Before the lock: a clone asks the pool.
        let source = waiter.source.clone();
        let mut state = self.state.lock();
        let others = state.in_flight.entry(registration.key);
        let under_way = matches!(others, Entry::Occupied(_));
        others.or_default().push(waiter);
        drop(state);
        (!under_way).then_some(Outgoing { registration, source })
    }

    /// Sends blocks whose keys are in `in_flight` on their way; returns how many found no room.
    fn begin(self: &Arc<Self>, outgoing: Vec<Outgoing>, ticket: &Arc<Ticket>) -> usize {
        if outgoing.is_empty() {
            return 0;
        }
        let keys: Vec<Key> = outgoing.iter().map(|block| block.registration.key).collect();
        let present = self.lower.pool().contains(&keys);
        let mut wanted = Vec::with_capacity(outgoing.len());
        for (block, present) in outgoing.into_iter().zip(present) {
            if present {
                let key = block.registration.key;
                drop(block);
                self.finish(key, &Ok(Arrival::Present));
            } else {
                wanted.push(block);
            }
        }
        let epoch = self.resets.enter();
        let targets = self.lower.pool().allocate_up_to(wanted.len());
        if !epoch.is_some_and(|epoch| self.resets.holds(epoch)) {
            for block in wanted {
                let (tier, block_id) = (self.upper.tier(), block.source.ids()[0]);
                let stale = TransferError::Stale { tier, block_id };
                let key = block.registration.key;
                drop(block);
                self.finish(key, &Err(stale));
            }
            return 0;
        }
        let refused = wanted.split_off(targets.len());
        let count = refused.len();
        for block in refused {
            self.refuse(block);
        }
        self.submit(wanted, targets, ticket);
        count
    }

    /// No room for this block: callers are told, the queue keeps it.
    fn refuse(self: &Arc<Self>, block: Outgoing) {
        let Outgoing { registration: Registration { key, .. }, source } = block;
        let blocks = Arc::new(source.downgrade());
        drop(source);
        let error = TransferError::NoRoom { tier: self.lower.tier() };
        let wanted_by_callers = self.finish(key, &Err(error));
        if wanted_by_callers {
            return;
        }
        let mut state = self.state.lock();
        if !state.closed
            && state.queue.len() < self.options.queue_blocks
            && state.queued.insert(key)
        {
            state.queue.push_back(Queued { key, blocks, position: 0 });
        }
    }

    fn submit(
        self: &Arc<Self>,
        blocks: Vec<Outgoing>,
        targets: MutableSlots,
        ticket: &Arc<Ticket>,
    ) {
        if blocks.is_empty() {
            return;
        }
        let pairs = blocks.iter().zip(targets.ids());
        let pairs =
            pairs.map(|(block, &to)| BlockPair { from: block.source.ids()[0], to }).collect();
        let plan =
            TransferPlan::new(self.upper.memory().clone(), self.lower.memory().clone(), pairs);
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => {
                let error = TransferError::from(error);
                for block in blocks {
                    self.finish(block.registration.key, &Err(error.clone()));
                }
                return;
            }
        };
        let count = blocks.len();
        let registrations: Vec<_> = blocks.iter().map(|block| block.registration).collect();
        let rows = blocks.into_iter().zip(targets.into_singles());
        let rows: Vec<_> = rows.map(|row| Mutex::new(Some(row))).collect();
        let edge = self.clone();
        let reports = InOrder::new(count, move |index, report| {
            let Some((block, target)) = rows[index].lock().take() else { return };
            edge.land(block, target, report);
        });
        let job = Job::new(plan, ticket.clone(), Arc::new(reports));
        if let Err((error, job)) = self.engine.submit(job) {
            drop(job);
            for registration in registrations {
                self.finish(registration.key, &Err(error.clone()));
            }
        }
    }

    /// A copy has ended: seal and publish the block, then tell who waits.
    fn land(
        self: &Arc<Self>,
        block: Outgoing,
        target: MutableSlots,
        report: Result<Box<[u64]>, TransferError>,
    ) {
        let Outgoing { registration, source } = block;
        let result = report.and_then(|sums| {
            let stale = |tier, block_id| TransferError::Stale { tier, block_id };
            // A reset during the copy: the bytes are of the past, whichever tier it hit.
            if source.are_current() != [true] {
                return Err(stale(self.upper.tier(), source.ids()[0]));
            }
            let slot = target.ids()[0];
            self.lower.seal(slot, registration.key, sums);
            match self.lower.pool().register(target, &[registration]) {
                Ok(stored) => {
                    // Registered and held by nobody: inactive, and matchable from here on.
                    drop(stored);
                    Ok(Arrival::Copied)
                }
                Err((_, target)) => {
                    drop(target);
                    Err(stale(self.lower.tier(), slot))
                }
            }
        });
        if result.is_ok() {
            self.counters.arrived(self.lower.memory().layout().block_bytes());
        }
        drop(source);
        self.finish(registration.key, &result);
        self.pump();
    }

    /// The copy of `key` has ended or will not be. Tells who waits; callers whose own ticket still
    /// holds are served by another copy if this one was given up by somebody else. Returns whether
    /// any caller waited.
    fn finish(self: &Arc<Self>, key: Key, result: &BlockResult) -> bool {
        let waiters = {
            let mut state = self.state.lock();
            state.in_flight.remove(&key).unwrap_or_default()
        };
        self.idle.notify_all();
        if let Err(error) = result {
            self.counters.failed(error);
        }
        let given_up =
            matches!(result, Err(TransferError::Cancelled | TransferError::DeadlineExceeded));
        let waited = !waiters.is_empty();
        for waiter in waiters {
            if given_up && waiter.sink.ticket().stopped().is_none() {
                let ticket = waiter.sink.ticket().clone();
                let registration = waiter.source.registrations()[0];
                if let Some(outgoing) = self.join(registration, waiter) {
                    self.begin(vec![outgoing], &ticket);
                }
            } else {
                let Waiter { sink, index, source } = waiter;
                // Before the caller is told: once its transfer is over, its handles are the only
                // ones, and dropping them makes room at once.
                drop(source);
                sink.set(index, result.clone());
            }
        }
        waited
    }
}
