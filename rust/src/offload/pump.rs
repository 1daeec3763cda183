//! Who serves the queue of a store edge.
//!
//! No thread of its own: whoever offers blocks and the engine's thread that reports a copy's end, by
//! one of them at a time. The others leave word that something has changed and go on.

use super::{
    flights::Flight,
    queue::Handle,
    store::{Errand, Inner, Outgoing},
};
use crate::{
    sync::Arc,
    transfer::{Arrival, TransferError},
};

/// Whether somebody serves the queue.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Pumping {
    No,
    Yes,
    /// Something has changed since: once more.
    Again,
}

impl Inner {
    /// Serves the queue, or lets whoever is at it know that there may be more to do. Never calls
    /// itself, however deep below an engine's `submit` a report may come.
    pub(super) fn pump(self: &Arc<Self>) {
        {
            let mut state = self.state.lock();
            if state.pumping != Pumping::No {
                state.pumping = Pumping::Again;
                return;
            }
            state.pumping = Pumping::Yes;
        }
        loop {
            let no_room = self.serve();
            let mut state = self.state.lock();
            if state.pumping == Pumping::Again {
                state.pumping = Pumping::Yes;
                continue;
            }
            state.pumping = Pumping::No;
            // What there is no room for would be waited for in vain.
            let flushed = match state.flights.is_empty() {
                true if state.queue.is_empty() => Some(Ok(Arrival::Present)),
                true if no_room => Some(Err(TransferError::NoRoom { tier: self.lane.to.tier() })),
                _ => None,
            };
            if let Some(result) = flushed {
                let flushes = std::mem::take(&mut state.flushes);
                drop(state);
                for flush in flushes {
                    flush.set(0, result.clone());
                }
            }
            return;
        }
    }

    /// Sends queued blocks on their way, batch by batch, as far as the in-flight bound and the
    /// lower tier's room allow; returns whether there was no room for some.
    fn serve(self: &Arc<Self>) -> bool {
        let mut parked = 0;
        loop {
            // With no room, one block still shows whether it is there already.
            let room = self.lane.to.pool().available().max(1);
            let taken = self.take(room);
            let Some((_, first)) = taken.first() else { return parked > 0 };
            let whole = first.batch.unpark();
            let mut outgoing = Vec::with_capacity(taken.len());
            let mut gone = 0;
            for (flight, handle) in taken {
                if let Some(source) = handle.upgrade().filter(|_| whole) {
                    let registration = source.registrations()[0];
                    let errand = Errand { flight, registration, queued: Some(handle) };
                    outgoing.push(Outgoing { source, errand });
                } else {
                    gone += 1;
                    drop(handle);
                    self.answer(flight, &Err(TransferError::Cancelled));
                }
            }
            self.counters.dropped(gone);
            if self.begin(outgoing, &self.background) {
                continue;
            }
            // What was refused is first in the queue again.
            let next = {
                let mut state = self.state.lock();
                // A copy that ends may make room, and serves the queue.
                if !state.flights.is_empty() {
                    return true;
                }
                let next = state.queue.rotate();
                parked += next.as_ref().map_or(0, |next| next.blocks);
                next.map(|next| (next, parked >= state.queue.len()))
            };
            let Some((next, all)) = next else { return true };
            next.park();
            if all {
                return true;
            }
        }
    }

    /// Moves entries of the first batch from the queue to the flights, at most `room`.
    fn take(&self, room: usize) -> Vec<(Flight, Handle)> {
        let resets = self.lane.resets();
        let mut taken: Vec<(Flight, Handle)> = Vec::new();
        // Handles are dropped after the lock.
        let mut under_way = Vec::new();
        let mut state = self.state.lock();
        while taken.len() < room && state.flights.len() < self.in_flight_blocks {
            let batch = taken.first().map(|(_, handle)| handle.batch.clone());
            let Some((key, handle)) = state.queue.pop(batch.as_ref()) else { break };
            let flight = Flight { key, resets };
            if state.flights.begin(flight) {
                taken.push((flight, handle));
            } else {
                under_way.push(handle);
            }
        }
        drop(state);
        taken
    }
}
