//! Whose blocks lie where.
//!
//! A slot's handle is the right to use its bytes, so the same bytes must not be slots of two
//! memories: two tiers over one storage, or two managers, would give two owners to each byte. Every
//! range that blocks are made of is claimed, once in the process, for as long as they live.
//!
//! Only memory that the CPU can reach is claimed: elsewhere no reference is ever made.
//!
//! A copy that has just been reported keeps its memory for an instant longer, on the engine's thread.
//! Who closes one manager and makes the next over the same memory is not refused for that: a claim
//! waits a moment for the one before it.
#![allow(unsafe_code)]

use std::{
    collections::BTreeMap,
    sync::LazyLock,
    time::{Duration, Instant},
};

use crate::{
    storage::{Storage, StorageError},
    sync::{Arc, Condvar, Mutex},
};

/// End of each claimed range, by its start.
type Ranges = BTreeMap<usize, usize>;

static RANGES: LazyLock<Mutex<Ranges>> = LazyLock::new(|| Mutex::new(Ranges::new()));

/// Told when ranges are given up.
static GIVEN_UP: LazyLock<Condvar> = LazyLock::new(Condvar::new);

/// How long a claim waits for an older one: far above what a thread needs to let go of a copy.
const PATIENCE: Duration = Duration::from_secs(1);

/// The ranges of some storages; given up when dropped.
pub(super) struct Claims(Vec<usize>);

impl Claims {
    /// Claims all of `storages`, or none.
    ///
    /// # Errors
    /// [`StorageError::InvalidConfig`] when blocks lie in one of them already.
    pub(super) fn new(storages: &[Arc<dyn Storage>]) -> Result<Self, StorageError> {
        let mut claimed = Self(Vec::with_capacity(storages.len()));
        let reachable = storages.iter().filter(|s| s.storage_type().is_host_accessible());
        for storage in reachable {
            // SAFETY: only the address is taken.
            let start = unsafe { storage.as_ptr() }.addr();
            let end = start + storage.size();
            let patience_ends = Instant::now() + PATIENCE;
            let mut ranges = RANGES.lock();
            while ranges.range(..end).next_back().is_some_and(|(_, &taken)| taken > start) {
                let left = patience_ends.saturating_duration_since(Instant::now());
                if !left.is_zero() {
                    ranges = GIVEN_UP.wait_timeout(ranges, left);
                    continue;
                }
                drop(ranges);
                return Err(StorageError::InvalidConfig {
                    field: "storage",
                    value: format!("{} bytes at {start:#x}", storage.size()),
                    remedy: "other blocks lie in it; give each tier and each manager its own",
                });
            }
            ranges.insert(start, end);
            claimed.0.push(start);
        }
        Ok(claimed)
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        let mut ranges = RANGES.lock();
        for start in &self.0 {
            ranges.remove(start);
        }
        drop(ranges);
        GIVEN_UP.notify_all();
    }
}
