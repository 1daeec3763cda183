//! The way down: from a tier to the next lower one.
//!
//! Two ways in. [`StoreEdge::offer`] is write-through: weak handles into a bounded queue, no
//! result. [`StoreEdge::offload`] is the caller's wish: strong handles, dispatched at once, a
//! result per block. Both meet in the flights, where each key is copied once at a time and whoever
//! asks for it meanwhile waits for the same copy.
//!
//! What cannot begin now (no room in the lower tier or its engine, a reset under way, a drive that is
//! not read yet) stays first in the queue; a caller is told.
//!
//! Nothing here waits and no thread is used: see `pump` for who serves the queue.

use std::time::Instant;

use super::{
    ResetEpoch, TierBlocks,
    counters::Counters,
    flights::{Flight, Flights, Waiter},
    lane::{Lane, Row},
    pump::Pumping,
    queue::{Batch, Handle, Queue},
};
use crate::{
    metrics::{Edge, EdgeMetrics},
    pool::{ImmutableSlots, MutableSlots, PoolError, Registration},
    storage::disk::DiskError,
    sync::{Arc, Mutex},
    tokens::Key,
    transfer::{
        Arrival, BlockResult, DeadlineTimer, Report, Ticket, Transfer, TransferEngine,
        TransferError, TransferSink, transfer,
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

/// The way from `upper` down to `lower`. Copies under way end with the edge: they are not
/// published.
#[derive(Clone)]
pub(crate) struct StoreEdge {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) lane: Lane,
    /// The way further down, which blocks take as they land.
    onward: Option<StoreEdge>,
    timer: DeadlineTimer,
    resets: ResetEpoch,
    pub(super) in_flight_blocks: usize,
    /// Stops the copies that nobody but the queue wants.
    pub(super) background: Arc<Ticket>,
    pub(super) counters: Counters,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    pub(super) queue: Queue,
    pub(super) flights: Flights,
    /// Told when nothing waits and nothing is on its way.
    pub(super) flushes: Vec<TransferSink>,
    pub(super) pumping: Pumping,
    closed: bool,
}

/// A block that is about to be copied; its flight has begun.
pub(super) struct Outgoing {
    pub(super) source: ImmutableSlots,
    pub(super) errand: Errand,
}

/// What a copy is for.
pub(super) struct Errand {
    pub(super) flight: Flight,
    pub(super) registration: Registration,
    /// Its place in the queue, which wants it back when there is no room.
    pub(super) queued: Option<Handle>,
}

impl StoreEdge {
    pub(crate) fn new(
        upper: Arc<TierBlocks>,
        lower: Arc<TierBlocks>,
        engine: Arc<dyn TransferEngine>,
        onward: Option<StoreEdge>,
        timer: DeadlineTimer,
        resets: ResetEpoch,
        options: StoreOptions,
    ) -> Self {
        let state = State {
            queue: Queue::new(options.queue_blocks),
            flights: Flights::default(),
            flushes: Vec::new(),
            pumping: Pumping::No,
            closed: false,
        };
        let inner = Arc::new(Inner {
            lane: Lane { from: upper, to: lower, engine },
            onward,
            timer,
            resets,
            in_flight_blocks: options.in_flight_blocks,
            background: Arc::new(Ticket::new(None)),
            counters: Counters::default(),
            state: Mutex::new(state),
        });
        let edge = Arc::downgrade(&inner);
        inner.lane.to.when_mended(move || {
            if let Some(edge) = edge.upgrade() {
                edge.pump();
            }
        });
        Self { inner }
    }

    /// Queues blocks of the upper tier to be written through when there is time. What does not fit
    /// the queue is dropped and counted.
    pub(crate) fn offer(&self, blocks: &ImmutableSlots) {
        let inner = &self.inner;
        let batch = Batch::new(blocks);
        let registrations = blocks.registrations();
        let resets = inner.lane.resets();
        let mut dropped = 0;
        // Handles are dropped after the lock.
        let mut replaced = Vec::new();
        {
            let mut state = inner.state.lock();
            if state.closed {
                return;
            }
            for (position, Registration { key, .. }) in registrations.into_iter().enumerate() {
                if state.flights.contains(Flight { key, resets }) {
                    continue;
                }
                match state.queue.push(key, Handle::new(batch.clone(), position)) {
                    Ok(older) => replaced.extend(older),
                    Err(_) => dropped += 1,
                }
            }
        }
        drop(replaced);
        inner.counters.dropped(dropped);
        inner.pump();
    }

    /// Copies blocks down now. The result is `Present` for what the lower tier has already.
    ///
    /// # Errors
    /// [`PoolError::ForeignHandle`] for blocks that are not of the upper tier.
    pub(crate) fn offload(
        &self,
        blocks: &ImmutableSlots,
        deadline: Option<Instant>,
    ) -> Result<Transfer, PoolError> {
        let inner = &self.inner;
        inner.lane.check_source(blocks)?;
        let resets = inner.lane.resets();
        let (transfer, sink) = transfer(blocks.len(), deadline, &inner.timer);
        let facts = blocks.registrations().into_iter().zip(blocks.are_current());
        let mut wanted = Vec::with_capacity(blocks.len());
        for (index, (source, (registration, current))) in
            blocks.clone().into_singles().zip(facts).enumerate()
        {
            if current {
                wanted.push((Waiter::new(sink.clone(), index, None), source, registration));
            } else {
                let error = inner.stale(&source);
                inner.counters.failed(&error);
                sink.set(index, Err(error));
            }
        }
        let outgoing = inner.join(wanted, resets);
        inner.begin(outgoing, sink.ticket());
        inner.pump();
        Ok(transfer)
    }

    /// Serves the queue; the transfer of one "block" that comes back succeeds when nothing is
    /// queued or on its way any more, and fails when the deadline comes first or the lower tier
    /// has no room for what is left.
    pub(crate) fn flush(&self, deadline: Option<Instant>) -> Transfer {
        let (transfer, sink) = transfer(1, deadline, &self.inner.timer);
        self.inner.state.lock().flushes.push(sink);
        self.inner.pump();
        transfer
    }

    /// Serves the queue: something has changed that it may have waited for.
    pub(crate) fn resume(&self) {
        self.inner.pump();
    }

    /// Blocks that wait or are on their way.
    pub(crate) fn unfinished(&self) -> usize {
        let state = self.inner.state.lock();
        state.queue.len() + state.flights.len()
    }

    /// Takes no more, drops what is queued and stops what only the queue wanted.
    pub(crate) fn close(&self) {
        self.inner.background.cancel();
        let queue = {
            let mut state = self.inner.state.lock();
            state.closed = true;
            std::mem::replace(&mut state.queue, Queue::new(0))
        };
        self.inner.counters.dropped(queue.len());
    }

    /// From where to where.
    pub(crate) fn edge(&self) -> Edge {
        let lane = &self.inner.lane;
        Edge { from: lane.from.tier(), to: lane.to.tier() }
    }

    pub(crate) fn metrics(&self) -> EdgeMetrics {
        let queued = self.inner.state.lock().queue.len();
        self.inner.counters.metrics(queued)
    }
}

impl Inner {
    /// Lets each wait for its copy; gives those whose copy is to be begun.
    fn join(
        &self,
        wanted: Vec<(Waiter, ImmutableSlots, Registration)>,
        resets: u64,
    ) -> Vec<Outgoing> {
        let mut state = self.state.lock();
        let mut outgoing = Vec::with_capacity(wanted.len());
        for (waiter, source, registration) in wanted {
            let flight = Flight { key: registration.key, resets };
            if let Some(source) = state.flights.join(flight, waiter, source) {
                let errand = Errand { flight, registration, queued: None };
                outgoing.push(Outgoing { source, errand });
            }
        }
        outgoing
    }

    /// Sends blocks whose flights have begun on their way; returns whether there was room for all.
    pub(super) fn begin(self: &Arc<Self>, outgoing: Vec<Outgoing>, ticket: &Arc<Ticket>) -> bool {
        if outgoing.is_empty() {
            return true;
        }
        let lower = self.lane.to.pool();
        let keys: Vec<Key> = outgoing.iter().map(|block| block.errand.registration.key).collect();
        let mut wanted = Vec::with_capacity(outgoing.len());
        for (block, present) in outgoing.into_iter().zip(lower.contains(&keys)) {
            if present {
                let flight = block.errand.flight;
                drop(block);
                self.counters.present();
                self.answer(flight, &Ok(Arrival::Present));
            } else {
                wanted.push(block);
            }
        }
        let registrations: Vec<_> =
            wanted.iter().map(|block: &Outgoing| block.errand.registration).collect();
        let epoch = self.resets.enter();
        // In the middle of a reset nothing is asked for, and no write paid for.
        let targets = epoch.map(|_| self.lane.to.places_for(&registrations)).unwrap_or_default();
        // What a caller has held since before a reset is of the past, whenever its turn comes.
        let current: Vec<bool> =
            wanted.iter().map(|block| block.source.are_current() == [true]).collect();
        let between_resets =
            epoch.is_some_and(|epoch| self.resets.holds(epoch)) && self.lane.to.knows_of_resets();
        let mut targets = targets.into_iter();
        let (mut rows, mut refused) = (Vec::with_capacity(wanted.len()), Vec::new());
        for (block, current) in wanted.into_iter().zip(current) {
            match targets.next() {
                Some(Ok(target)) if between_resets && current => {
                    let Outgoing { source, errand } = block;
                    rows.push(Row { source, target, errand });
                }
                Some(Err(error)) if between_resets && current => refused.push((block, error)),
                target => {
                    if let Some(Ok(target)) = target {
                        self.lane.to.refund(target.ids()[0], &block.errand.registration);
                    }
                    let error = self.stale(&block.source);
                    refused.push((block, error));
                }
            }
        }
        let edge = Arc::downgrade(self);
        let land = move |row: Row<Errand>, report| {
            // Without its edge nobody waits: the row is dropped, which frees its slots.
            if let Some(edge) = edge.upgrade() {
                edge.land(row, report);
            }
        };
        let sent = self.lane.send(rows, ticket, land);
        if let Err((error, rows)) = sent {
            let rows =
                rows.into_iter().map(|Row { source, errand, .. }| Outgoing { source, errand });
            let blocks = rows.map(|block| (block, error.clone()));
            refused.splice(..0, blocks);
        }
        let all = refused.is_empty();
        // The last first: each goes back to the head of the queue.
        for (block, error) in refused.into_iter().rev() {
            self.refuse(block, error);
        }
        all
    }

    /// This block cannot begin now, for want of room, because of a reset or because it is not known
    /// yet what the drive holds: callers are told, the queue keeps it.
    fn refuse(self: &Arc<Self>, block: Outgoing, error: TransferError) {
        let Outgoing { source, errand } = block;
        drop(source);
        let not_now = matches!(
            error,
            TransferError::NoRoom { .. }
                | TransferError::QueueFull { .. }
                | TransferError::Stale { .. }
                | TransferError::Disk(DiskError::Unread)
        );
        match errand.queued {
            Some(handle) if not_now => {
                // A newer handle to the same key may be in the queue; none is taken at the end.
                let (unwanted, closed) = {
                    let mut state = self.state.lock();
                    if state.closed {
                        (Some(handle), true)
                    } else {
                        (state.queue.put_back(errand.registration.key, handle), false)
                    }
                };
                drop(unwanted);
                self.counters.dropped(usize::from(closed));
                self.answer(errand.flight, &Err(error));
            }
            _ => self.fail(errand.flight, error),
        }
    }

    /// A copy has ended: seal and publish the block, then tell who waits.
    fn land(self: &Arc<Self>, row: Row<Errand>, report: Report) {
        let Row { source, target, errand } = row;
        let slot = target.ids()[0];
        let stored = match report {
            Ok(sums) => self.publish(&source, target, errand.registration, sums),
            Err(error) => {
                // Before anybody is told.
                let another_may_do = self.lane.to.missed(target, &errand.registration, &error);
                if another_may_do && errand.queued.is_some() {
                    let tier = self.lane.to.tier();
                    self.refuse(Outgoing { source, errand }, TransferError::NoRoom { tier });
                    self.pump();
                    return;
                }
                // Whatever happened: what is not current nobody wants any more.
                let current = source.are_current() == [true];
                let error = if current { error } else { self.stale(&source) };
                if matches!(error, TransferError::VerificationFailed { .. }) {
                    tracing::error!(%error, "a block has changed since it was sealed");
                    self.lane.from.condemn(source.clone());
                }
                Err(error)
            }
        };
        if let (Ok(stored), Some(onward)) = (&stored, &self.onward) {
            onward.offer(stored);
        }
        // Whoever is told finds both sides released: unless more of its batch is to come, the
        // block is inactive now, and matchable from here on.
        drop(source);
        let result = stored.map(|stored| {
            if let Some(handle) = &errand.queued {
                handle.batch.hold(stored);
            }
        });
        drop(errand.queued);
        match result {
            Ok(()) => {
                self.counters.arrived(self.lane.to.layout().block_bytes());
                self.lane.to.stored(slot);
                self.answer(errand.flight, &Ok(Arrival::Copied));
            }
            Err(error) => self.fail(errand.flight, error),
        }
        self.pump();
    }

    fn publish(
        &self,
        source: &ImmutableSlots,
        target: MutableSlots,
        registration: Registration,
        sums: Box<[u64]>,
    ) -> Result<ImmutableSlots, TransferError> {
        let lower = &self.lane.to;
        // A reset during the copy: the bytes are of the past, whichever tier it hit.
        if source.are_current() != [true] {
            lower.forget(target);
            return Err(self.stale(source));
        }
        let block_id = target.ids()[0];
        lower.seal(block_id, registration.key, sums);
        let registered = lower.pool().register(target, &[registration]);
        registered.map_err(|(_, target)| {
            lower.forget(target);
            TransferError::Stale { tier: lower.tier(), block_id }
        })
    }

    fn fail(self: &Arc<Self>, flight: Flight, error: TransferError) {
        self.counters.failed(&error);
        self.answer(flight, &Err(error));
    }

    /// The copy has ended or will not be. Tells who waits; those whom the reason does not concern
    /// get a copy of their own.
    pub(super) fn answer(self: &Arc<Self>, flight: Flight, result: &BlockResult) {
        let waiters = self.state.lock().flights.end(flight);
        for mut waiter in waiters {
            let again = result.as_ref().err().and_then(|error| waiter.another_try(error));
            if let Some(source) = again {
                let ticket = waiter.sink.ticket().clone();
                let registration = source.registrations()[0];
                let outgoing = self.join(vec![(waiter, source, registration)], self.lane.resets());
                self.begin(outgoing, &ticket);
            } else {
                waiter.tell(result.clone());
            }
        }
    }

    fn stale(&self, source: &ImmutableSlots) -> TransferError {
        TransferError::Stale { tier: self.lane.from.tier(), block_id: source.ids()[0] }
    }
}
