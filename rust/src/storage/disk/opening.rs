//! Opening a directory: from whatever is there to a sound state.

use std::fs;
use std::path::Path;

use super::directory::{DiskDirectory, Head};
use super::geometry::{Geometry, SetId};
use super::owner::OwnerLock;
use super::recover::Scan;
use super::report::{DiskFinding, Recovered, RecoveryReport, Superblocks};
use super::set::{self, DiskSet};
use super::superblock::{self, FILE_BYTES, MAX_SETS, Superblock};
use super::{DiskError, DiskOptions, Durability, Preallocation, room};
use crate::io::{FileOp, IoError, OpenFile, OsVolume, Place, Volume};
use crate::sync::{Arc, Mutex, atomic::AtomicU64};

impl DiskDirectory {
    /// Opens the directory at `path`, which is made where it is not there, as its one owner.
    ///
    /// # Errors
    ///
    /// [`DiskError::Locked`] with the owner's name, [`DiskError::Version`], and whatever the system
    /// says.
    pub fn open(path: &Path, options: DiskOptions) -> Result<(Self, Recovered), DiskError> {
        let name: Arc<str> = path.to_string_lossy().into();
        let place = Place::whole(&name, FileOp::Open);
        fs::create_dir_all(path).map_err(|error| IoError::from_os(place, &error))?;
        let (lock, died) = OwnerLock::take(path)?;
        // The files share the lock: an operation that hangs past the end of this owner keeps the
        // next one out until it cannot do harm any more.
        let volume = OsVolume::new(path, options.direct)?.guarded_by(Arc::new(lock));
        let (directory, mut recovered) = Self::open_on(Arc::new(volume), options)?;
        recovered.report.died = died;
        Ok((directory, recovered))
    }

    /// Opens the directory on a volume that nobody else uses; there is no lock.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn open_on(
        volume: Arc<dyn Volume>,
        options: DiskOptions,
    ) -> Result<(Self, Recovered), DiskError> {
        let how = OpenFile { create: true, write: true, direct: false };
        let superfile = volume.open(superblock::NAME, how)?;
        let (found, mut state) = Superblock::read(&*superfile)?;
        if !options.reuse && state != Superblocks::Fresh {
            state = Superblocks::Lost;
        }
        let former = found.as_ref().map_or(0, |found| found.generation);
        let found = found.filter(|_| state != Superblocks::Lost);
        let mut superblock = found.clone().unwrap_or_else(Superblock::new);
        // Starting empty is a reset, which directories that were not there catch up with.
        if found.is_none() {
            superblock.generation = former.saturating_add(1);
        }
        let removed = remove_strays(&*volume, &superblock)?;
        let take = || room::take(&*superfile, 0..FILE_BYTES, Preallocation::Auto);
        let sparse = if found.is_none() {
            // No table of before may be found under a superblock that starts anew.
            volume.sync()?;
            take()?
        } else {
            // It has its room; asked for once more, that shows whether any can be reserved here.
            take().unwrap_or(false)
        };
        if state != Superblocks::Whole {
            superblock.sequence = superblock.sequence.saturating_add(1);
            superblock.write(&*superfile)?;
            volume.sync()?;
        }

        let how = OpenFile { direct: options.direct, ..how };
        let mut scan = Scan::default();
        let mut sets = Vec::new();
        for &(id, geometry) in &superblock.sets {
            let set = DiskSet::open(&*volume, id, geometry, how)?;
            scan.read(&set, &superblock)?;
            sets.push(Arc::new(set));
        }
        scan.deduplicate();
        for set in &sets {
            let (slots, _) = set.lengths()?;
            set.cut(slots)?;
            let mut marks = scan.marks(set, slots);
            for slot in scan.erase.iter().filter(|slot| slot.set == set.id && slot.slot < slots) {
                match set.erase(slot.slot) {
                    // Its sector is lost: nothing is stored there until that has changed.
                    Err(IoError::Device { .. }) => marks.set_hole(slot.slot),
                    erased => erased?,
                }
            }
            if options.durability == Durability::Power {
                set.sync_table()?;
            }
            set.install(marks);
        }
        let sequence =
            scan.blocks.iter().map(|block| block.sequence.saturating_add(1)).max().unwrap_or(1);
        let report = RecoveryReport {
            kept: scan.blocks.len() as u64,
            dropped: scan.dropped,
            superblocks: state,
            removed,
            died: None,
        };
        let generation = superblock.generation;
        let head =
            Head { superblock, unwritten: false, sets, asked: Vec::new(), findings: Vec::new() };
        let mut directory = Self {
            volume,
            options,
            superfile,
            head: Mutex::new(head),
            generation: AtomicU64::new(generation),
            sequence: Arc::new(AtomicU64::new(sequence)),
            current: SetId(0),
        };
        if sparse && directory.options.preallocation == Preallocation::Auto {
            directory.head.lock().find(DiskFinding::Sparse);
        }
        directory.current = directory.set_of(directory.options.geometry)?;
        let wanted = directory.limit().saturating_sub(directory.used());
        if let Some(free) = directory.volume.free_bytes().filter(|&free| free < wanted) {
            directory.head.lock().find(DiskFinding::Overcommitted { wanted, free });
        }
        Ok((directory, Recovered { blocks: scan.blocks, report }))
    }

    /// The set of a geometry, which is made where it is not there.
    fn set_of(&self, geometry: Geometry) -> Result<SetId, DiskError> {
        let mut head = self.head.lock();
        let known = head.sets.iter().find(|set| set.geometry == geometry);
        let set = if let Some(set) = known {
            set.clone()
        } else {
            if head.sets.len() == MAX_SETS {
                return Err(DiskError::TableFull { what: "geometry", limit: MAX_SETS });
            }
            let id = SetId(head.superblock.next_set);
            let how = OpenFile { create: true, write: true, direct: self.options.direct };
            let set = Arc::new(DiskSet::open(&*self.volume, id, geometry, how)?);
            self.volume.sync()?;
            let full = DiskError::TableFull { what: "geometry", limit: MAX_SETS };
            head.superblock.next_set = id.0.checked_add(1).ok_or(full)?;
            head.superblock.sets.push((id, geometry));
            head.sets.push(set.clone());
            self.write_head(&mut head)?;
            set
        };
        head.find(DiskFinding::Mode(set.data.mode().clone()));
        Ok(set.id)
    }
}

/// Removes files of ours that the superblock does not name.
fn remove_strays(volume: &dyn Volume, superblock: &Superblock) -> Result<Vec<String>, IoError> {
    let known: Vec<String> = superblock.sets.iter().flat_map(|(id, _)| set::names(*id)).collect();
    let mut strays = volume.names()?;
    strays.retain(|name| set::is_ours(name) && !known.contains(name));
    for name in &strays {
        volume.remove(name)?;
    }
    strays.sort();
    Ok(strays)
}
