//! How a manager ends: what is to go down goes down first.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{KvBlockManager, ManagerError};
use crate::{metrics::Edge, sync::atomic::Ordering};

/// Every wait ends: a year stands for ever.
const LONGEST_FLUSH: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long a shutdown waits, beyond its time, for a drive to let go of its directory.
const GRACE: Duration = Duration::from_millis(250);

/// What a shutdown left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Blocks that were to go down and had not arrived when time was up; they are dropped.
    pub unfinished: usize,
    /// The same by the way they were to take; those without any are left out.
    pub by_edge: BTreeMap<Edge, usize>,
}

impl KvBlockManager {
    /// Waits until what is to go down has arrived, at most `timeout`; returns how many blocks have
    /// not, because time was up or because the lower tier has no room for them now.
    ///
    /// # Errors
    /// [`ManagerError::Shutdown`].
    pub async fn flush(&self, timeout: Duration) -> Result<usize, ManagerError> {
        self.check_open()?;
        let deadline = deadline(timeout);
        for edge in &self.inner.edges.down {
            edge.flush(deadline).await;
        }
        Ok(self.unfinished())
    }

    /// [`flush`](Self::flush) without a future.
    ///
    /// # Errors
    /// The same.
    pub fn flush_blocking(&self, timeout: Duration) -> Result<usize, ManagerError> {
        self.check_open()?;
        let deadline = deadline(timeout);
        for edge in &self.inner.edges.down {
            edge.flush(deadline).wait(None);
        }
        Ok(self.unfinished())
    }

    /// Ends the verbs, waits until what is to go down has arrived, at most `timeout`, and drops
    /// the rest. Blocks that are held stay readable. Called again, it waits again for what is
    /// still on its way.
    pub async fn shutdown(&self, timeout: Duration) -> ShutdownReport {
        self.inner.closed.store(true, Ordering::Release);
        let deadline = deadline(timeout);
        for edge in &self.inner.edges.down {
            edge.flush(deadline).await;
        }
        self.end_shutdown()
    }

    /// [`shutdown`](Self::shutdown) without a future.
    pub fn shutdown_blocking(&self, timeout: Duration) -> ShutdownReport {
        self.inner.closed.store(true, Ordering::Release);
        let deadline = deadline(timeout);
        for edge in &self.inner.edges.down {
            edge.flush(deadline).wait(None);
        }
        self.end_shutdown()
    }

    fn unfinished(&self) -> usize {
        self.inner.edges.unfinished()
    }

    fn end_shutdown(&self) -> ShutdownReport {
        let edges = self.inner.edges.down.iter();
        let left = edges.map(|edge| (edge.edge(), edge.unfinished())).filter(|(_, left)| *left > 0);
        let by_edge: BTreeMap<Edge, usize> = left.collect();
        let unfinished = by_edge.values().sum();
        for (edge, blocks) in &by_edge {
            tracing::warn!(%edge, blocks, unfinished, "shut down before all blocks had gone down");
        }
        // Small books of the drive may be under way still.
        self.inner.close(Instant::now().checked_add(GRACE));
        ShutdownReport { unfinished, by_edge }
    }
}

fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout.min(LONGEST_FLUSH))
}
