//! Under which fingerprint a drive stores and reads.
//!
//! An era begins in one step and in memory alone, so that nothing of the former one is stored under
//! the new fingerprint however the drive is. It counts for nothing until the drive's table has been
//! read for it: until then the drive takes no stores.
//!
//! A switch of fingerprints resets the pool and not the directory, whose reset generation is
//! therefore that of the pool plus a base which each era has of its own. A store is of an era if its
//! label's generation is, by that sum, the directory's own: what was allocated before the era, or
//! before a reset, never is. Where a reset of the directory leaves numbers out the base makes up for
//! it; until both have changed no sum is the directory's generation.

use super::drive::Drive;
use crate::{
    seal::Fingerprint,
    storage::disk::{DiskDirectory, DiskError, FingerprintId},
    sync::Arc,
};

/// A time in which a drive has one fingerprint.
#[derive(Clone, Debug)]
pub(super) struct Era {
    /// Switches before it.
    pub(super) number: u64,
    pub(super) fingerprint: Fingerprint,
    /// Name of the fingerprint, for people.
    pub(super) label: Arc<str>,
    /// What the directory calls the fingerprint; `None` until its table has been read.
    pub(super) id: Option<FingerprintId>,
    /// Blocks that were found then.
    pub(super) found: usize,
    /// The directory's reset generation when the pool's was 0, less the switches.
    pub(super) base: u64,
}

impl Era {
    /// The directory's reset generation when the pool's is `of_pool`.
    pub(super) fn generation(&self, of_pool: u64) -> u64 {
        self.base.wrapping_add(of_pool)
    }
}

/// The era of a drive, and those before it that stores under way are of.
#[derive(Debug)]
pub(super) struct Eras {
    now: Arc<Era>,
    past: Vec<Arc<Era>>,
}

impl Eras {
    pub(super) fn new(first: Era) -> Self {
        Self { now: Arc::new(first), past: Vec::new() }
    }
}

impl Drive {
    pub(super) fn era(&self) -> Arc<Era> {
        self.eras.lock().now.clone()
    }

    /// Whether the table has been read for the present fingerprint.
    pub(crate) fn is_read(&self) -> bool {
        self.eras.lock().now.id.is_some()
    }

    /// Begins the era after `number` switches, unless a later one has begun. The pool is reset once
    /// for each switch.
    pub(super) fn begin_era(&self, number: u64, fingerprint: Fingerprint, label: &Arc<str>) {
        let mut eras = self.eras.lock();
        let Some(switches) = number.checked_sub(eras.now.number).filter(|&more| more > 0) else {
            return;
        };
        let base = eras.now.base.wrapping_sub(switches);
        let next =
            Arc::new(Era { number, fingerprint, label: label.clone(), id: None, found: 0, base });
        let former = std::mem::replace(&mut eras.now, next);
        // Nothing was stored in one that was never read.
        eras.past.extend(former.id.is_some().then_some(former));
    }

    /// The directory's generation went up by so many more than the pool's.
    pub(super) fn skip_generations(&self, skipped: u64) {
        let mut eras = self.eras.lock();
        let base = eras.now.base.wrapping_add(skipped);
        eras.now = Arc::new(Era { base, ..Era::clone(&eras.now) });
    }

    /// The table was read for the era of that number: stores may begin.
    pub(super) fn open_era(&self, number: u64, id: FingerprintId, found: usize) {
        let mut eras = self.eras.lock();
        if eras.now.number == number {
            eras.now = Arc::new(Era { id: Some(id), found, ..Era::clone(&eras.now) });
        }
    }

    /// What the fingerprints of former eras are called that stores under way may still write.
    pub(super) fn past_fingerprints(&self) -> Vec<FingerprintId> {
        let mut eras = self.eras.lock();
        eras.past.retain(|era| Arc::strong_count(era) > 1);
        eras.past.iter().filter_map(|era| era.id).collect()
    }

    /// The era of a store whose slot was allocated in that generation of the pool.
    ///
    /// # Errors
    /// [`DiskError::WrongGeneration`] where that is past, [`DiskError::Unread`].
    pub(super) fn era_of(
        &self,
        directory: &DiskDirectory,
        of_pool: u64,
    ) -> Result<(Arc<Era>, FingerprintId), DiskError> {
        let era = self.era();
        let (found, current) = (era.generation(of_pool), directory.generation());
        if found != current {
            return Err(DiskError::WrongGeneration { found, current });
        }
        let id = era.id.ok_or(DiskError::Unread)?;
        Ok((era, id))
    }
}
