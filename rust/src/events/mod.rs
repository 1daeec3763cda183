//! What happens to blocks, told to whoever wants to know: a router, an index, a log.
//!
//! Implement [`EventManager`] and give it to the manager. Per key and tier only the change
//! between no copy and one copy is told; a follower that applies registrations, evictions and
//! clearings in order therefore ends with what is resident.
//!
//! Invariants: one order per manager, fixed under the lock of the pool concerned; parents are told
//! before their children, because they are registered before; the sink runs on one thread at a
//! time, holds no lock of ours, and can neither block another thread nor break the stream.
//!
//! Not here: wires. A publisher is a sink.

mod event;
mod stream;

pub use event::{BlockEvent, EventBlock, EventKind, TierCleared};
pub use stream::EventStream;

/// A sink of events. Every method does nothing unless implemented.
///
/// Methods are called in stream order by one thread at a time, though not always the same one,
/// with no lock of ours held: they may use the manager. They run on a thread that was on its way
/// to do something else, so a sink that needs time should hand the event to a thread of its own.
/// A panic costs the sink that one event.
pub trait EventManager: Send + Sync {
    /// A free slot became somebody's to fill.
    fn block_allocated(&self, event: &BlockEvent) {
        let _ = event;
    }

    /// The tier holds the first copy under this key.
    fn block_registered(&self, event: &BlockEvent) {
        let _ = event;
    }

    /// A registered block was found and is held by the caller.
    fn block_matched(&self, event: &BlockEvent) {
        let _ = event;
    }

    /// The tier holds no copy under this key any more.
    fn block_evicted(&self, event: &BlockEvent) {
        let _ = event;
    }

    /// The tier forgot every key at once.
    fn tier_cleared(&self, event: &TierCleared) {
        let _ = event;
    }
}

/// The sink that does nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NullEventManager;

impl EventManager for NullEventManager {}
