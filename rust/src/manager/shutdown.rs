//! How a manager ends: what is to go down goes down first.

use std::time::{Duration, Instant};

use super::{KvBlockManager, ManagerError};
use crate::{offload::StoreEdge, sync::atomic::Ordering, transfer::Transfer};

/// Every wait ends: a year stands for ever.
const LONGEST_FLUSH: Duration = Duration::from_secs(365 * 24 * 3600);

/// What a shutdown left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownReport {
    /// Blocks that were to go down and had not arrived when time was up.
    pub unfinished: usize,
}

impl KvBlockManager {
    /// Waits until what is to go down has arrived, at most `timeout`; returns how many blocks have
    /// not, because time was up or because the lower tier has no room for them now.
    ///
    /// # Errors
    /// [`ManagerError::Shutdown`].
    pub async fn flush(&self, timeout: Duration) -> Result<usize, ManagerError> {
        self.check_open()?;
        if let Some(flush) = self.start_flush(timeout) {
            flush.await;
        }
        Ok(self.unfinished())
    }

    /// [`flush`](Self::flush) without a future.
    ///
    /// # Errors
    /// The same.
    pub fn flush_blocking(&self, timeout: Duration) -> Result<usize, ManagerError> {
        self.check_open()?;
        if let Some(flush) = self.start_flush(timeout) {
            flush.wait(None);
        }
        Ok(self.unfinished())
    }

    /// Ends the verbs, waits until what is to go down has arrived, at most `timeout`, and drops
    /// the rest. Blocks that are held stay readable. Called again, it waits again for what is
    /// still on its way.
    pub async fn shutdown(&self, timeout: Duration) -> ShutdownReport {
        self.inner.closed.store(true, Ordering::Release);
        if let Some(flush) = self.start_flush(timeout) {
            flush.await;
        }
        self.end_shutdown()
    }

    /// [`shutdown`](Self::shutdown) without a future.
    pub fn shutdown_blocking(&self, timeout: Duration) -> ShutdownReport {
        self.inner.closed.store(true, Ordering::Release);
        if let Some(flush) = self.start_flush(timeout) {
            flush.wait(None);
        }
        self.end_shutdown()
    }

    fn start_flush(&self, timeout: Duration) -> Option<Transfer> {
        let deadline = Instant::now().checked_add(timeout.min(LONGEST_FLUSH));
        Some(self.inner.store.as_ref()?.flush(deadline))
    }

    fn unfinished(&self) -> usize {
        self.inner.store.as_ref().map_or(0, StoreEdge::unfinished)
    }

    fn end_shutdown(&self) -> ShutdownReport {
        let unfinished = self.unfinished();
        if unfinished > 0 {
            tracing::warn!(unfinished, "shut down before all blocks had gone down");
        }
        self.inner.close();
        ShutdownReport { unfinished }
    }
}
