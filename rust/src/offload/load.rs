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
    Match, Onboard, OnboardOptions, ResetEpoch, StoreEdge, TierBlocks,
    arrivals::Arrivals,
    counters::Counters,
    flights::{Flight, Flights, Waiter},
    lane::{Lane, Row},
};
use crate::{
    metrics::{Edge, EdgeMetrics},
    pool::{ImmutableSlots, MutableSlots, PoolError, Registration},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    transfer::{
        Arrival, DeadlineTimer, Report, Ticket, Transfer, TransferEngine, TransferError, transfer,
    },
};

/// The ways from all lower tiers up to the first. Copies under way end with the edge: they are not
/// published.
#[derive(Clone)]
pub(crate) struct LoadEdge {
    inner: Arc<Inner>,
}

struct Inner {
    upper: Arc<TierBlocks>,
    ways: Vec<Way>,
    timer: DeadlineTimer,
    resets: ResetEpoch,
    flights: Mutex<Flights>,
}

/// The way up from one tier.
struct Way {
    lane: Lane,
    counters: Counters,
    /// Blocks that are on it.
    in_flight: AtomicUsize,
    /// The way down that its blocks take once they are up: back to a tier that is nearer, or, where
    /// writes are counted, on to a drive that has declined them the first time.
    onward: Option<Onward>,
}

/// What is offered to a lower tier when a block has come up.
#[derive(Clone)]
pub(crate) enum Onward {
    /// The block that has arrived.
    Arrived(StoreEdge),
    /// The block that it was copied from.
    Source(StoreEdge),
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
    /// Which of the ways up.
    way: usize,
    registration: Registration,
    /// Who began it.
    arrivals: Arc<Arrivals>,
    /// The place of the target slot among those that the caller gave, if it did.
    place: Option<usize>,
}

impl LoadEdge {
    /// Ways to `upper` from each of `lower`, with who copies on it, and the way that its blocks take
    /// afterwards.
    pub(crate) fn new(
        upper: Arc<TierBlocks>,
        lower: impl IntoIterator<Item = (Arc<TierBlocks>, Arc<dyn TransferEngine>, Option<Onward>)>,
        timer: DeadlineTimer,
        resets: ResetEpoch,
    ) -> Self {
        let ways = lower.into_iter().map(|(from, engine, onward)| Way {
            lane: Lane { from, to: upper.clone(), engine },
            counters: Counters::default(),
            in_flight: AtomicUsize::new(0),
            onward,
        });
        let ways = ways.collect();
        let flights = Mutex::default();
        Self { inner: Arc::new(Inner { upper, ways, timer, resets, flights }) }
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
        let upper = &inner.upper;
        let OnboardOptions { skip, into, deadline } = options;
        for segment in found.segments() {
            if inner.way_of(segment).is_none() {
                upper.check_owner(segment)?;
            }
        }
        into.iter().try_for_each(|slots| upper.check_target(slots))?;

        let resets = inner.resets_so_far();
        let blocks: Vec<Located> = located(found, skip).collect();
        let (transfer, sink) = transfer(blocks.len(), deadline, &inner.timer);
        let mut there = Vec::with_capacity(blocks.len());
        let mut missing = Vec::new();
        for (position, located) in blocks.into_iter().enumerate() {
            let way = inner.way_of(&located.block);
            there.push(None);
            match way {
                _ if !located.current => {
                    let way = way.map(|way| &inner.ways[way]);
                    let tier = way.map_or(upper, |way| &way.lane.from);
                    let error = stale(tier, &located.block);
                    // What is stale in the first tier is booked on the nearest way to it.
                    if let Some(way) = way.or(inner.ways.first()) {
                        way.counters.failed(&error);
                    }
                    sink.set(position, Err(error));
                }
                None => {
                    there[position] = Some(located.block);
                    if let Some(way) = inner.ways.first() {
                        way.counters.present();
                    }
                    sink.set(position, Ok(Arrival::Present));
                }
                Some(way) => missing.push((position, way, located)),
            }
        }
        let arrivals = Arc::new(Arrivals::new(there));
        let wanted = missing.into_iter().map(|(position, way, located)| {
            let waiter = Waiter::new(sink.clone(), position, Some(arrivals.clone()));
            (waiter, way, located.block, located.registration)
        });
        let incoming = inner.join(wanted.collect(), &arrivals, resets);
        inner.begin(incoming, into, &arrivals, sink.ticket());
        Ok(Onboard { transfer, arrivals, timing: None })
    }

    /// What each way has done.
    pub(crate) fn metrics(&self) -> impl Iterator<Item = (Edge, EdgeMetrics)> + '_ {
        self.inner.ways.iter().map(|way| {
            let edge = Edge { from: way.lane.from.tier(), to: way.lane.to.tier() };
            (edge, way.counters.metrics(way.in_flight.load(Ordering::Relaxed)))
        })
    }
}

impl Inner {
    /// The way up that a block takes; `None` for one of the first tier, or of no tier here.
    fn way_of(&self, block: &ImmutableSlots) -> Option<usize> {
        self.ways.iter().position(|way| way.lane.check_source(block).is_ok())
    }

    /// Resets of any tier so far.
    fn resets_so_far(&self) -> u64 {
        let lower = self.ways.iter().map(|way| way.lane.from.pool().generation());
        self.upper.pool().generation() + lower.sum::<u64>()
    }

    /// Lets each wait for its copy; gives those whose copy is to be begun.
    fn join(
        &self,
        wanted: Vec<(Waiter, usize, ImmutableSlots, Registration)>,
        arrivals: &Arc<Arrivals>,
        resets: u64,
    ) -> Vec<Incoming> {
        let mut flights = self.flights.lock();
        let mut incoming = Vec::with_capacity(wanted.len());
        for (waiter, way, source, registration) in wanted {
            let flight = Flight { key: registration.key, resets };
            if let Some(source) = flights.join(flight, waiter, source) {
                self.ways[way].in_flight.fetch_add(1, Ordering::Relaxed);
                let arrivals = arrivals.clone();
                let errand = Errand { flight, way, registration, arrivals, place: None };
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
        let upper = &self.upper;
        let given = into.is_some();
        let epoch = self.resets.enter();
        let targets = into.unwrap_or_else(|| upper.pool().allocate_up_to(incoming.len()));
        let forgotten = !epoch.is_some_and(|epoch| self.resets.holds(epoch));
        let mut targets = targets.into_singles().enumerate();
        let mut rows: Vec<Vec<Row<Errand>>> = self.ways.iter().map(|_| Vec::new()).collect();
        for Incoming { source, mut errand } in incoming {
            if forgotten {
                let error = stale(&self.ways[errand.way].lane.from, &source);
                drop(source);
                self.fail(errand.flight, errand.way, &error);
            } else if let Some((place, target)) = targets.next() {
                errand.place = given.then_some(place);
                rows[errand.way].push(Row { source, target, errand });
            } else {
                drop(source);
                let error = TransferError::NoRoom { tier: upper.tier() };
                self.fail(errand.flight, errand.way, &error);
            }
        }
        for (place, target) in targets {
            give_back(arrivals, given.then_some(place), target);
        }
        for (way, rows) in self.ways.iter().zip(rows) {
            let edge = Arc::downgrade(self);
            let land = move |row: Row<Errand>, report| {
                // Without its edge nobody waits: the row is dropped, which frees its slots.
                if let Some(edge) = edge.upgrade() {
                    edge.land(row, report);
                }
            };
            if let Err((error, rows)) = way.lane.send(rows, ticket, land) {
                for Row { source, target, errand } in rows {
                    drop(source);
                    give_back(&errand.arrivals, errand.place, target);
                    self.fail(errand.flight, errand.way, &error);
                }
            }
        }
    }

    /// A copy has ended.
    fn land(self: &Arc<Self>, row: Row<Errand>, report: Report) {
        let Row { source, target, errand } = row;
        let way = &self.ways[errand.way];
        match way.publish(&self.resets, source, target, errand.registration, report) {
            Ok(block) => {
                way.counters.arrived(self.upper.layout().block_bytes());
                if let Some(Onward::Arrived(nearer)) = &way.onward {
                    nearer.offer(&block);
                }
                let waiters = self.flights.lock().end(errand.flight);
                way.in_flight.fetch_sub(1, Ordering::Relaxed);
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
                self.fail(errand.flight, errand.way, &error);
            }
        }
    }

    /// The copy will not be. Tells who waits; those whom the reason does not concern get a copy of
    /// their own.
    fn fail(self: &Arc<Self>, flight: Flight, way: usize, error: &TransferError) {
        self.ways[way].counters.failed(error);
        self.ways[way].in_flight.fetch_sub(1, Ordering::Relaxed);
        let waiters = self.flights.lock().end(flight);
        for mut waiter in waiters {
            let arrivals = waiter.arrivals.clone();
            match (waiter.another_try(error), arrivals) {
                (Some(source), Some(arrivals)) => {
                    let ticket = waiter.sink.ticket().clone();
                    let registration = source.registrations()[0];
                    // Of the tier that this caller found it in, which may be another one.
                    let way = self.way_of(&source).unwrap_or(way);
                    let wanted = vec![(waiter, way, source, registration)];
                    let incoming = self.join(wanted, &arrivals, self.resets_so_far());
                    self.begin(incoming, None, &arrivals, &ticket);
                }
                _ => waiter.tell(Err(error.clone())),
            }
        }
    }
}

impl Way {
    /// Verifies a block that was copied, then registers it. A verdict on the block stands only if no
    /// reset and no switch of fingerprints came before it was spoken.
    fn publish(
        &self,
        resets: &ResetEpoch,
        source: ImmutableSlots,
        target: MutableSlots,
        registration: Registration,
        report: Report,
    ) -> Result<ImmutableSlots, (TransferError, MutableSlots)> {
        let (upper, lower) = (&self.lane.to, &self.lane.from);
        let epoch = resets.enter();
        // A reset during the copy: the bytes are of the past, whichever tier it hit.
        if source.are_current() != [true] {
            return Err((stale(lower, &source), target));
        }
        let sums = match report {
            Ok(sums) => sums,
            Err(error) => {
                if error.blames_source() {
                    // Whoever asks next is not told that it is there.
                    tracing::error!(tier = %lower.tier(), %error, "a block is lost");
                    lower.condemn(source);
                }
                return Err((error, target));
            }
        };
        let block_id = source.ids()[0];
        if !lower.proves(block_id, registration.key, &sums) {
            if !epoch.is_some_and(|epoch| resets.holds(epoch)) || source.are_current() != [true] {
                return Err((stale(lower, &source), target));
            }
            tracing::error!(
                tier = %lower.tier(), block = block_id, key = %registration.key.hash,
                "bytes fail verification: quarantined"
            );
            lower.condemn(source);
            let tier = lower.tier();
            return Err((TransferError::VerificationFailed { tier, block_id }, target));
        }
        let to = target.ids()[0];
        let block = upper.pool().register(target, &[registration]).map_err(|(_, target)| {
            (TransferError::Stale { tier: upper.tier(), block_id: to }, target)
        })?;
        lower.arrived(block_id);
        if let Some(Onward::Source(deeper)) = &self.onward {
            deeper.offer(&source);
        }
        Ok(block)
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
