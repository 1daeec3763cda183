//! What an edge has done.

use std::collections::BTreeMap;

use crate::{
    metrics::EdgeMetrics,
    sync::atomic::{AtomicU64, Ordering},
    transfer::TransferError,
};

/// Counters of one edge; each only grows.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Blocks that arrived: copied and, where there was a seal, verified.
    blocks: AtomicU64,
    /// Payload bytes of those.
    bytes: AtomicU64,
    /// Blocks that were there already, so that nothing was copied.
    present: AtomicU64,
    /// Blocks that left the queue uncopied: evicted before their turn, or the queue was full.
    dropped: AtomicU64,
    /// Blocks the target had no room for.
    no_room: AtomicU64,
    /// Blocks given up by cancel or deadline.
    given_up: AtomicU64,
    /// Blocks that a reset made worthless on their way.
    stale: AtomicU64,
    /// Blocks whose bytes were not those of their seal.
    verification: AtomicU64,
    /// Blocks that the write budget of a drive declined.
    declined: AtomicU64,
    /// Blocks that failed for any other reason.
    other: AtomicU64,
}

impl Counters {
    pub(super) fn arrived(&self, bytes: usize) {
        self.blocks.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn present(&self) {
        self.present.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn dropped(&self, blocks: usize) {
        self.dropped.fetch_add(blocks as u64, Ordering::Relaxed);
    }

    pub(super) fn failed(&self, error: &TransferError) {
        let counter = match error {
            TransferError::Cancelled | TransferError::DeadlineExceeded => &self.given_up,
            TransferError::VerificationFailed { .. } => &self.verification,
            TransferError::NoRoom { .. } => &self.no_room,
            error if error.lacks_room() => &self.no_room,
            TransferError::Stale { .. } => &self.stale,
            TransferError::Declined { .. } => &self.declined,
            _ => &self.other,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn metrics(&self, queued: usize) -> EdgeMetrics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EdgeMetrics {
            blocks: read(&self.blocks),
            bytes: read(&self.bytes),
            present: read(&self.present),
            failures: BTreeMap::from([
                ("no_room", read(&self.no_room)),
                ("given_up", read(&self.given_up)),
                ("stale", read(&self.stale)),
                ("verification", read(&self.verification)),
                ("declined", read(&self.declined)),
                ("other", read(&self.other)),
            ]),
            drops: read(&self.dropped),
            queue_depth: queued as u64,
        }
    }
}
