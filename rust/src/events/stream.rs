//! One ordered stream of events per manager.

use std::{
    collections::VecDeque,
    fmt, iter, mem,
    panic::{AssertUnwindSafe, catch_unwind},
};

use super::{BlockEvent, EventBlock, EventKind, EventManager, TierCleared};
use crate::{
    config::Tier,
    metrics::EventMetrics,
    sync::{Arc, Mutex},
};

/// Numbers what happens under the locks of pools, and tells the sink about it after they are
/// released.
///
/// A pool calls [`record`](Self::record) while it holds its lock, which fixes the order, and
/// [`deliver`](Self::deliver) once it holds none. Whoever finds a delivery in progress leaves its
/// events to it and goes on; so one thread at a time runs the sink, in order, with no lock held.
/// The sink may call back into pools: what that records is delivered after the event at hand.
///
/// The outbox is bounded. When it is full the newest events are dropped and their numbers with
/// them. A sink that stalls holds up the one thread that runs it and nobody else, and memory for
/// two outboxes at most. A sink that panics loses that event; the panic is counted.
///
/// Without a sink both calls cost one branch; with one, an event costs a push under an
/// uncontended lock, 160 bytes while it waits.
pub struct EventStream {
    sink: Option<Arc<dyn EventManager>>,
    /// Events that may wait.
    bound: usize,
    outbox: Mutex<Outbox>,
}

#[derive(Default)]
struct Outbox {
    waiting: VecDeque<Event>,
    /// Whether some thread is delivering.
    delivering: bool,
    counts: EventMetrics,
}

enum Event {
    Block(EventKind, BlockEvent),
    Cleared(TierCleared),
}

impl EventStream {
    /// Events that may wait when nothing else is stated: what 8 requests of 128 k tokens at 16
    /// tokens a block register, 10 MiB when full.
    pub const DEFAULT_BOUND: usize = 1 << 16;

    /// A stream to `sink` with [`DEFAULT_BOUND`](Self::DEFAULT_BOUND).
    pub fn new(sink: Arc<dyn EventManager>) -> Self {
        Self::with_bound(sink, Self::DEFAULT_BOUND)
    }

    /// A stream to `sink` in which at most `bound` events wait (at least one).
    pub fn with_bound(sink: Arc<dyn EventManager>, bound: usize) -> Self {
        Self { sink: Some(sink), bound: bound.max(1), outbox: Mutex::new(Outbox::default()) }
    }

    /// A stream that nobody listens to.
    pub fn detached() -> Self {
        Self { sink: None, bound: 0, outbox: Mutex::new(Outbox::default()) }
    }

    /// Whether somebody listens; where not, callers need not describe what happened.
    pub fn is_attached(&self) -> bool {
        self.sink.is_some()
    }

    /// Numbers one event per block. Takes no lock but its own and runs no foreign code but the
    /// iterator, so it may be called under a pool's lock.
    pub fn record(
        &self,
        kind: EventKind,
        tier: Tier,
        blocks: impl IntoIterator<Item = EventBlock>,
    ) {
        if self.sink.is_none() {
            return;
        }
        let number =
            |block: EventBlock| move |sequence| Event::Block(kind, block.numbered(sequence, tier));
        self.push(blocks.into_iter().map(number));
    }

    /// Numbers the event that `tier` forgot everything.
    pub fn record_cleared(&self, tier: Tier) {
        if self.sink.is_some() {
            let event = |sequence| Event::Cleared(TierCleared { sequence, tier });
            self.push(iter::once(event));
        }
    }

    fn push<F: FnOnce(u64) -> Event>(&self, events: impl Iterator<Item = F>) {
        let mut outbox = self.outbox.lock();
        for event in events {
            let sequence = outbox.counts.recorded;
            outbox.counts.recorded += 1;
            if outbox.waiting.len() < self.bound {
                outbox.waiting.push_back(event(sequence));
            } else {
                outbox.counts.dropped += 1;
            }
        }
    }

    /// Tells the sink what waits, unless some thread is at it already. Call it with no lock held.
    pub fn deliver(&self) {
        let Some(sink) = &self.sink else { return };
        let mut batch = VecDeque::new();
        let mut outbox = self.outbox.lock();
        if outbox.delivering {
            return;
        }
        while !outbox.waiting.is_empty() {
            outbox.delivering = true;
            mem::swap(&mut batch, &mut outbox.waiting);
            drop(outbox);
            let told = batch.len() as u64;
            let panics: u64 = batch.drain(..).map(|event| u64::from(!tell(&**sink, &event))).sum();
            outbox = self.outbox.lock();
            outbox.counts.delivered += told;
            outbox.counts.panics += panics;
        }
        outbox.delivering = false;
        // Nothing waits, so the room of the last batch can serve the next one.
        if batch.capacity() > outbox.waiting.capacity() {
            mem::swap(&mut batch, &mut outbox.waiting);
        }
    }

    /// The number that the next event will have. Read under the lock of a pool, together with what
    /// that pool holds, it tells a follower from where on to apply that pool's events.
    pub fn next_sequence(&self) -> u64 {
        self.outbox.lock().counts.recorded
    }

    /// What became of the events so far.
    pub fn metrics(&self) -> EventMetrics {
        self.outbox.lock().counts.clone()
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream")
            .field("attached", &self.is_attached())
            .field("bound", &self.bound)
            .field("metrics", &self.metrics())
            .finish_non_exhaustive()
    }
}

/// Runs the sink; false when it panicked.
fn tell(sink: &dyn EventManager, event: &Event) -> bool {
    // The sink is the only thing a panic can leave half done, and keeping itself whole is its own
    // affair: nothing of ours is borrowed mutably across the call.
    let outcome = catch_unwind(AssertUnwindSafe(|| match event {
        Event::Block(EventKind::Allocated, event) => sink.block_allocated(event),
        Event::Block(EventKind::Registered, event) => sink.block_registered(event),
        Event::Block(EventKind::Matched, event) => sink.block_matched(event),
        Event::Block(EventKind::Evicted, event) => sink.block_evicted(event),
        Event::Cleared(event) => sink.tier_cleared(event),
    }));
    match outcome {
        Ok(()) => true,
        Err(payload) => {
            // A payload is foreign too: one that panics when dropped is left alone.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                mem::forget(again);
            }
            false
        }
    }
}

#[cfg(all(test, dynamo_loom))]
mod loom_tests {
    use super::*;

    #[derive(Default)]
    struct Log(std::sync::Mutex<Vec<u64>>);

    impl EventManager for Log {
        fn block_matched(&self, event: &BlockEvent) {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(event.sequence);
        }
    }

    /// However two threads interleave, once both are done nothing waits and the order held.
    #[test]
    fn no_event_is_left_behind() {
        loom::model(|| {
            let log = Arc::new(Log::default());
            let stream = Arc::new(EventStream::new(log.clone()));
            let work = |stream: &EventStream, blocks: u32| {
                for block in 0..blocks {
                    stream.record(EventKind::Matched, Tier::Device, [EventBlock::slot(block)]);
                    stream.deliver();
                }
            };
            let other = Arc::clone(&stream);
            let thread = loom::thread::spawn(move || work(&other, 2));
            work(&stream, 2);
            let _ = thread.join();
            assert_eq!(stream.metrics().delivered, 4);
            let told = log.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
            assert_eq!(told, [0, 1, 2, 3]);
        });
    }
}
