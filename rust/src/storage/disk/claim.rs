//! A place for a fingerprint in a table that is full of fingerprints with blocks.

use super::record::FingerprintId;
use super::recover::Scan;
use super::superblock::MAX_FINGERPRINTS;
use super::{DiskDirectory, DiskError, DiskSlot};
use crate::sync::Arc;

impl DiskDirectory {
    /// The number of a fingerprint, as [`fingerprint`](Self::fingerprint) gives it. Where the table is
    /// full and each has blocks, it takes the place of the one under which nothing was stored for the
    /// longest time, whose blocks are erased; the number of that comes second.
    ///
    /// # Errors
    ///
    /// [`DiskError::TableFull`] where all have been asked for, and whatever the drive says.
    pub(crate) fn claim_fingerprint(
        &self,
        digest: [u8; 32],
        label: &str,
    ) -> Result<(FingerprintId, Option<FingerprintId>), DiskError> {
        match self.fingerprint(digest, label) {
            Err(full @ DiskError::TableFull { .. }) => {
                let oldest = self.idlest()?.ok_or(full)?;
                self.erase_all(oldest)?;
                Ok((self.fingerprint(digest, label)?, Some(oldest)))
            }
            id => Ok((id?, None)),
        }
    }

    /// The fingerprint whose newest block is the oldest, of those that have not been asked for.
    fn idlest(&self) -> Result<Option<FingerprintId>, DiskError> {
        let mut newest = [None; MAX_FINGERPRINTS];
        self.each_block(|_, fingerprint, sequence| {
            if let Some(newest) = newest.get_mut(usize::from(fingerprint.index())) {
                *newest = (*newest).max(Some(sequence));
            }
        })?;
        let asked = self.head.lock().asked.clone();
        let ids = (0..).map(FingerprintId).zip(newest);
        let idle = ids.filter(|(id, newest)| newest.is_some() && !asked.contains(id));
        Ok(idle.min_by_key(|(_, newest)| *newest).map(|(id, _)| id))
    }

    fn erase_all(&self, gone: FingerprintId) -> Result<(), DiskError> {
        let mut slots = Vec::new();
        self.each_block(|slot, fingerprint, _| {
            if fingerprint == gone {
                slots.push(slot);
            }
        })?;
        self.tombstone(&slots)
    }

    /// Slot, fingerprint and sequence number of every block in the tables.
    fn each_block(
        &self,
        mut visit: impl FnMut(DiskSlot, FingerprintId, u64),
    ) -> Result<(), DiskError> {
        let (sets, superblock) = {
            let head = self.head.lock();
            (head.sets.iter().map(Arc::clone).collect::<Vec<_>>(), head.superblock.clone())
        };
        for set in sets {
            let mut scan = Scan::default();
            scan.read_by_piece(&set, &superblock, |scan| {
                for block in scan.blocks.drain(..) {
                    visit(block.slot, block.record.fingerprint, block.sequence);
                }
            })?;
        }
        Ok(())
    }
}
