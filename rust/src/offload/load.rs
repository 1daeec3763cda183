//! The way up: a match becomes blocks in the first tier.
//!
//! Blocks that are there already stay where they are; the others are copied up, each verified
//! against its seal before it is registered. What comes back is the longest prefix that arrived,
//! by the deadline at the latest. Copies that arrive later are not lost: they are verified and
//! registered like the others and stay as inactive blocks.
//!
//! A block that is on its way up for somebody is not copied again: who wants it too waits for that
//! copy, and is served as soon as its own blocks have arrived.
#![allow(clippy::result_large_err, reason = "a refusal hands the slot back")]

use super::{
    Match, Onboard, OnboardOptions, ResetEpoch, TierBlocks,
    arrivals::Arrivals,
    counters::Counters,
    flights::{Flight, Flights, Waiter},
    lane::{Lane, Row},
};
use crate::{
    metrics::EdgeMetrics,
    pool::{ImmutableSlots, MutableSlots, PoolError, Registration},
    sync::{Arc, Mutex},
    transfer::{
        Arrival, DeadlineTimer, Report, Ticket, Transfer, TransferEngine, TransferError, transfer,
    },
};

/// The way from `lower` up to `upper`. Copies under way end with the edge: they are not published.
#[derive(Clone)]
pub(crate) struct LoadEdge {
    inner: Arc<Inner>,
}

struct Inner {
    lane: Lane,
    timer: DeadlineTimer,
    resets: ResetEpoch,
    counters: Counters,
    flights: Mutex<Flights>,
}

/// A block of a match.
struct Located {
    block: ImmutableSlots,
    registration: Registration,
    current: bool,
}

/// A block that is about to be copied; its flight has begun.
struct Incoming {
    source: ImmutableSlots,
    errand: Errand,
}

/// What a copy is for.
struct Errand {
    flight: Flight,
    registration: Registration,
    /// Who began it.
    arrivals: Arc<Arrivals>,
    /// The place of the target slot among those that the caller gave, if it did.
    place: Option<usize>,
}

impl LoadEdge {
    pub(crate) fn new(
        upper: Arc<TierBlocks>,
        lower: Arc<TierBlocks>,
        engine: Arc<dyn TransferEngine>,
        timer: DeadlineTimer,
        resets: ResetEpoch,
    ) -> Self {
        let lane = Lane { from: lower, to: upper, engine };
        let (counters, flights) = (Counters::default(), Mutex::default());
        Self { inner: Arc::new(Inner { lane, timer, resets, counters, flights }) }
    }

    /// Starts to bring a match up.
    ///
    /// # Errors
    /// [`PoolError::ForeignHandle`] for a match of other tiers, and for slots to copy into that
    /// are not of the upper one.
    pub(crate) fn onboard(
        &self,
        found: Match,
        options: OnboardOptions,
    ) -> Result<Onboard, PoolError> {
        let inner = &self.inner;
        let (upper, lower) = (&inner.lane.to, &inner.lane.from);
        let OnboardOptions { skip, into, deadline } = options;
        for segment in found.segments() {
            upper.check_owner(segment).or_else(|_| lower.check_owner(segment))?;
        }
        into.iter().try_for_each(|slots| upper.check_target(slots))?;

        let resets = inner.lane.resets();
        let blocks: Vec<Located> = located(found, skip).collect();
        let (transfer, sink) = transfer(blocks.len(), deadline, &inner.timer);
        let mut there = Vec::with_capacity(blocks.len());
        let mut missing = Vec::new();
        for (position, located) in blocks.into_iter().enumerate() {
            let in_place = upper.check_owner(&located.block).is_ok();
            there.push(None);
            if !located.current {
                let error = stale(if in_place { upper } else { lower }, &located.block);
                inner.counters.failed(&error);
                sink.set(position, Err(error));
            } else if in_place {
                there[position] = Some(located.block);
                inner.counters.present();
                sink.set(position, Ok(Arrival::Present));
            } else {
                missing.push((position, located));
            }
        }
        let arrivals = Arc::new(Arrivals::new(there));
        let wanted = missing.into_iter().map(|(position, located)| {
            let waiter = Waiter::new(sink.clone(), position, Some(arrivals.clone()));
            (waiter, located.block, located.registration)
        });
        let incoming = inner.join(wanted.collect(), &arrivals, resets);
        inner.begin(incoming, into, &arrivals, sink.ticket());
        Ok(Onboard { transfer, arrivals, timing: None })
    }

    pub(crate) fn metrics(&self) -> EdgeMetrics {
        let under_way = self.inner.flights.lock().len();
        self.inner.counters.metrics(under_way)
    }
}

impl Inner {
    /// Lets each wait for its copy; gives those whose copy is to be begun.
    fn join(
        &self,
        wanted: Vec<(Waiter, ImmutableSlots, Registration)>,
        arrivals: &Arc<Arrivals>,
        resets: u64,
    ) -> Vec<Incoming> {
        let mut flights = self.flights.lock();
        let mut incoming = Vec::with_capacity(wanted.len());
        for (waiter, source, registration) in wanted {
            let flight = Flight { key: registration.key, resets };
            if let Some(source) = flights.join(flight, waiter, source) {
                let errand =
                    Errand { flight, registration, arrivals: arrivals.clone(), place: None };
                incoming.push(Incoming { source, errand });
            }
        }
        incoming
    }

    /// Sends blocks whose flights have begun on their way, into the slots given or new ones.
    fn begin(
        self: &Arc<Self>,
        incoming: Vec<Incoming>,
        into: Option<MutableSlots>,
        arrivals: &Arc<Arrivals>,
        ticket: &Arc<Ticket>,
    ) {
        let (upper, lower) = (&self.lane.to, &self.lane.from);
        let given = into.is_some();
        let epoch = self.resets.enter();
        let targets = into.unwrap_or_else(|| upper.pool().allocate_up_to(incoming.len()));
        let forgotten = !epoch.is_some_and(|epoch| self.resets.holds(epoch));
        let mut targets = targets.into_singles().enumerate();
        let mut rows = Vec::with_capacity(incoming.len());
        for Incoming { source, mut errand } in incoming {
            if forgotten {
                let error = stale(lower, &source);
                drop(source);
                self.fail(errand.flight, &error);
            } else if let Some((place, target)) = targets.next() {
                errand.place = given.then_some(place);
                rows.push(Row { source, target, errand });
            } else {
                drop(source);
                self.fail(errand.flight, &TransferError::NoRoom { tier: upper.tier() });
            }
        }
        for (place, target) in targets {
            give_back(arrivals, given.then_some(place), target);
        }
        let edge = Arc::downgrade(self);
        let land = move |row: Row<Errand>, report| {
            // Without its edge nobody waits: the row is dropped, which frees its slots.
            if let Some(edge) = edge.upgrade() {
                edge.land(row, report);
            }
        };
        if let Err((error, rows)) = self.lane.send(rows, ticket, land) {
            for Row { source, target, errand } in rows {
                drop(source);
                give_back(&errand.arrivals, errand.place, target);
                self.fail(errand.flight, &error);
            }
        }
    }

    /// A copy has ended.
    fn land(self: &Arc<Self>, row: Row<Errand>, report: Report) {
        let Row { source, target, errand } = row;
        match self.publish(source, target, errand.registration, report) {
            Ok(block) => {
                self.counters.arrived(self.lane.to.memory().layout().block_bytes());
                let waiters = self.flights.lock().end(errand.flight);
                // Whoever is told finds its block, and nobody else holding it for an instant.
                if let Some((first, others)) = waiters.split_first() {
                    for waiter in others {
                        waiter.put(block.clone());
                    }
                    first.put(block);
                }
                for waiter in waiters {
                    waiter.tell(Ok(Arrival::Copied));
                }
            }
            Err((error, target)) => {
                give_back(&errand.arrivals, errand.place, target);
                self.fail(errand.flight, &error);
            }
        }
    }

    /// Verifies a block that was copied, then registers it.
    fn publish(
        &self,
        source: ImmutableSlots,
        target: MutableSlots,
        registration: Registration,
        report: Report,
    ) -> Result<ImmutableSlots, (TransferError, MutableSlots)> {
        let (upper, lower) = (&self.lane.to, &self.lane.from);
        let sums = match report {
            Ok(sums) => sums,
            Err(error) => return Err((error, target)),
        };
        // A reset during the copy: the bytes are of the past, whichever tier it hit.
        if source.are_current() != [true] {
            return Err((stale(lower, &source), target));
        }
        let block_id = source.ids()[0];
        if !lower.proves(block_id, registration.key, &sums) {
            tracing::error!(
                tier = %lower.tier(), block = block_id, key = %registration.key.hash,
                "bytes fail verification: quarantined"
            );
            source.quarantine();
            let tier = lower.tier();
            return Err((TransferError::VerificationFailed { tier, block_id }, target));
        }
        let to = target.ids()[0];
        upper.pool().register(target, &[registration]).map_err(|(_, target)| {
            (TransferError::Stale { tier: upper.tier(), block_id: to }, target)
        })
    }

    /// The copy will not be. Tells who waits; those whom the reason does not concern get a copy of
    /// their own.
    fn fail(self: &Arc<Self>, flight: Flight, error: &TransferError) {
        self.counters.failed(error);
        let waiters = self.flights.lock().end(flight);
        for mut waiter in waiters {
            let arrivals = waiter.arrivals.clone();
            match (waiter.another_try(error), arrivals) {
                (Some(source), Some(arrivals)) => {
                    let ticket = waiter.sink.ticket().clone();
                    let registration = source.registrations()[0];
                    let wanted = vec![(waiter, source, registration)];
                    let incoming = self.join(wanted, &arrivals, self.lane.resets());
                    self.begin(incoming, None, &arrivals, &ticket);
                }
                _ => waiter.tell(Err(error.clone())),
            }
        }
    }
}

/// An onboarding of a match that is all in `upper`, with no tier below it.
///
/// # Errors
/// As [`LoadEdge::onboard`].
pub(crate) fn in_place(
    upper: &TierBlocks,
    found: Match,
    options: OnboardOptions,
) -> Result<Onboard, PoolError> {
    found.segments().iter().try_for_each(|segment| upper.check_owner(segment))?;
    options.into.iter().try_for_each(|slots| upper.check_target(slots))?;
    let located = located(found, options.skip);
    let (blocks, results) = located
        .map(|Located { block, current, .. }| {
            if current {
                (Some(block), Ok(Arrival::Present))
            } else {
                (None, Err(stale(upper, &block)))
            }
        })
        .unzip();
    let arrivals = Arrivals::new(blocks);
    for (place, slot) in options.into.into_iter().flat_map(MutableSlots::into_singles).enumerate() {
        arrivals.give_back(place, slot);
    }
    Ok(Onboard {
        transfer: Transfer::finished(results),
        arrivals: Arc::new(arrivals),
        timing: None,
    })
}

/// The blocks of a match after the first `skip`, one by one, in order.
fn located(found: Match, skip: usize) -> impl Iterator<Item = Located> {
    let mut skip = skip;
    found.into_segments().into_iter().flat_map(move |mut segment| {
        let rest = segment.split_off(skip);
        skip -= segment.len();
        let (registrations, current) = (rest.registrations(), rest.are_current());
        let facts = registrations.into_iter().zip(current);
        rest.into_singles().zip(facts).map(|(block, (registration, current))| Located {
            block,
            registration,
            current,
        })
    })
}

/// A slot that no block came into goes back to the caller who gave it, else to its pool.
fn give_back(arrivals: &Arrivals, place: Option<usize>, slot: MutableSlots) {
    if let Some(place) = place {
        arrivals.give_back(place, slot);
    }
}

fn stale(tier: &TierBlocks, block: &ImmutableSlots) -> TransferError {
    TransferError::Stale { tier: tier.tier(), block_id: block.ids()[0] }
}
