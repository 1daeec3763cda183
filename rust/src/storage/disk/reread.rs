//! Reading the table of a directory that is in use again, for another fingerprint.
//!
//! Nothing is changed. Records may be written meanwhile: what is said of their slots is old then, and
//! whoever asks knows which slots those are. Names are kept of the blocks that are asked for only.

use super::record::FingerprintId;
use super::recover::Scan;
use super::{DiskDirectory, DiskError, RecoveredBlock};

/// What the table of the current set says.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub(crate) struct Reread {
    /// Reset generation that was in force.
    pub generation: u64,
    /// Blocks of the fingerprint that was asked for. Each is a claim until its bytes verify.
    pub blocks: Vec<RecoveredBlock>,
    /// Slots with blocks of other fingerprints or older ones of the same name, and when each was
    /// stored; only the order counts.
    pub foreign: Vec<(u64, u32)>,
    /// Slots without a block, ascending. The room of some may have been given up.
    pub free: Vec<u32>,
}

impl DiskDirectory {
    /// Reads the table of the current set, once and in order.
    ///
    /// # Errors
    ///
    /// Whatever the drive says.
    pub(crate) fn read_again(&self, fingerprint: FingerprintId) -> Result<Reread, DiskError> {
        let (set, superblock) = {
            let head = self.head.lock();
            (head.set(self.current)?.clone(), head.superblock.clone())
        };
        let mut scan = Scan::default();
        let (mut blocks, mut foreign) = (Vec::new(), Vec::new());
        let slots = scan.read_by_piece(&set, &superblock, |scan| {
            for block in scan.blocks.drain(..) {
                if block.record.fingerprint == fingerprint {
                    blocks.push(block);
                } else {
                    foreign.push((block.sequence, block.slot.slot));
                }
            }
        })?;
        // What should be erased cannot be trusted with a block before that is done, at an opening.
        let unfit = scan.erase.len();
        scan.blocks = blocks;
        scan.deduplicate();
        foreign.extend(scan.erase[unfit..].iter().map(|older| (0, older.slot)));
        let mut free = vec![true; slots as usize];
        let known = scan.blocks.iter().map(|block| block.slot.slot);
        let known = known.chain(foreign.iter().map(|&(_, slot)| slot));
        for slot in known.chain(scan.erase.iter().map(|slot| slot.slot)) {
            if let Some(free) = free.get_mut(slot as usize) {
                *free = false;
            }
        }
        let free = (0..slots).zip(free).filter_map(|(slot, free)| free.then_some(slot)).collect();
        Ok(Reread { generation: superblock.generation, blocks: scan.blocks, foreign, free })
    }
}
