//! Who waits for which copy.
//!
//! A key is copied once at a time; whoever asks for it meanwhile waits for that copy. When it is
//! given up by the one who started it, those who still want it and hold the block get one of their
//! own.

use std::collections::{HashMap, hash_map::Entry};

use super::arrivals::Arrivals;
use crate::{
    pool::ImmutableSlots,
    sync::Arc,
    tokens::Key,
    transfer::{BlockResult, TransferError, TransferSink},
};

/// A copy under way: of this key, begun after so many resets. What began before a reset is no
/// answer to who asks after it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Flight {
    pub(super) key: Key,
    pub(super) resets: u64,
}

/// The copies under way and who waits for each.
#[derive(Default)]
pub(super) struct Flights(HashMap<Flight, Vec<Waiter>>);

impl Flights {
    /// Begins a flight that nobody waits for yet; `false` if it is under way.
    pub(super) fn begin(&mut self, flight: Flight) -> bool {
        match self.0.entry(flight) {
            Entry::Occupied(_) => false,
            Entry::Vacant(new) => {
                new.insert(Vec::new());
                true
            }
        }
    }

    /// Lets `waiter` wait for the flight. Gives the block back to who has to copy it: the flight
    /// is not under way yet.
    pub(super) fn join(
        &mut self,
        flight: Flight,
        mut waiter: Waiter,
        source: ImmutableSlots,
    ) -> Option<ImmutableSlots> {
        match self.0.entry(flight) {
            Entry::Vacant(new) => {
                new.insert(vec![waiter]);
                Some(source)
            }
            Entry::Occupied(mut others) => {
                waiter.source = Some(source);
                others.get_mut().push(waiter);
                None
            }
        }
    }

    /// Ends a flight and gives those who waited.
    pub(super) fn end(&mut self, flight: Flight) -> Vec<Waiter> {
        self.0.remove(&flight).unwrap_or_default()
    }

    pub(super) fn contains(&self, flight: Flight) -> bool {
        self.0.contains_key(&flight)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A caller who waits for one block. It always gets an answer: dropped without one, it is told
/// that the engine stopped.
pub(super) struct Waiter {
    pub(super) sink: TransferSink,
    pub(super) index: usize,
    /// Where the caller collects blocks, if it wants them.
    pub(super) arrivals: Option<Arc<Arrivals>>,
    /// The block, held while somebody else's copy of it is waited for.
    source: Option<ImmutableSlots>,
    told: bool,
}

impl Waiter {
    pub(super) fn new(sink: TransferSink, index: usize, arrivals: Option<Arc<Arrivals>>) -> Self {
        Self { sink, index, arrivals, source: None, told: false }
    }

    /// Lays a block that has arrived where the caller collects them.
    pub(super) fn put(&self, block: ImmutableSlots) {
        if let Some(arrivals) = &self.arrivals {
            arrivals.put(self.index, block);
        }
    }

    pub(super) fn tell(mut self, result: BlockResult) {
        self.source = None;
        self.told = true;
        self.sink.set(self.index, result);
    }

    /// The block to copy for this caller alone, if `error` concerned only whoever began the copy
    /// and this one still wants it.
    pub(super) fn another_try(&mut self, error: &TransferError) -> Option<ImmutableSlots> {
        let not_its_own = matches!(
            error,
            TransferError::Cancelled
                | TransferError::DeadlineExceeded
                | TransferError::Stale { .. }
        );
        let wanted = not_its_own && self.sink.ticket().stopped().is_none();
        self.source.take().filter(|_| wanted)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if !self.told {
            self.sink.set(self.index, Err(TransferError::EngineStopped));
        }
    }
}
