//! Whose blocks lie where.
//!
//! A slot's handle is the right to use its bytes, so the same bytes must not be slots of two
//! memories: two tiers over one storage, or two managers, would give two owners to each byte. Every
//! range that blocks are made of is claimed, once in the process, for as long as they live.
//!
//! Only memory that the CPU can reach is claimed: elsewhere no reference is ever made.
#![allow(unsafe_code)]

use std::{collections::BTreeMap, sync::LazyLock};

use crate::{
    storage::{Storage, StorageError},
    sync::{Arc, Mutex},
};

/// End of each claimed range, by its start.
type Ranges = BTreeMap<usize, usize>;

static RANGES: LazyLock<Mutex<Ranges>> = LazyLock::new(|| Mutex::new(Ranges::new()));

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
            let mut ranges = RANGES.lock();
            let before = ranges.range(..end).next_back();
            if before.is_some_and(|(_, &taken)| taken > start) {
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
    }
}
