//! Looking into a directory without owning it.
//!
//! Nothing is written and no lock is taken, so it works beside the owner and on read-only file
//! systems; beside an owner the answer is a snapshot that was never quite true.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use super::record::FingerprintId;
use super::recover::Scan;
use super::set::{self, DiskSet};
use super::superblock::{self, Superblock};
use super::{DiskError, DropReason, Geometry, RecoveredBlock, SetId, owner};
use crate::io::{AlignedBuffer, FileOp, IoError, OpenFile, OsVolume, Place, Volume, read_full};

/// A fingerprint and the blocks that have it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FingerprintUse {
    /// The digest.
    pub digest: [u8; 32],
    /// What it was called.
    pub label: String,
    /// Blocks.
    pub blocks: u64,
}

/// A set and its slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetUse {
    /// Which.
    pub id: SetId,
    /// Its geometry.
    pub geometry: Geometry,
    /// Slots there are.
    pub slots: u64,
    /// Slots whose room was given back.
    pub holes: u64,
    /// Blocks.
    pub blocks: u64,
}

/// What is in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// Version of the format.
    pub format_version: u32,
    /// Reset generation.
    pub generation: u64,
    /// Fingerprints, by number.
    pub fingerprints: Vec<FingerprintUse>,
    /// Sets, oldest first.
    pub sets: Vec<SetUse>,
    /// Blocks that a new owner would find. Fewer where it learns from the other drives of a tier of
    /// a reset that this one has missed.
    pub blocks: u64,
    /// Their bytes, without padding and sums.
    pub bytes: u64,
    /// Records that it would not keep, by reason.
    pub dropped: BTreeMap<DropReason, u64>,
}

/// One block as it lies on the drive.
#[derive(Debug)]
pub struct WalkedSlot<'a> {
    /// What its record says.
    pub block: &'a RecoveredBlock,
    /// Digest of its fingerprint.
    pub fingerprint: [u8; 32],
    /// Its bytes and the sums of its tiles, unverified; or why they could not be read.
    pub read: Result<(&'a [u8], Vec<u64>), IoError>,
}

struct Opened {
    superblock: Superblock,
    sets: Vec<DiskSet>,
    scan: Scan,
}

/// Reads superblock and tables.
fn open(path: &Path) -> Result<Opened, DiskError> {
    let volume = OsVolume::new(path, true)?;
    let ours = |name: &str| set::is_ours(name) || name == superblock::NAME || name == owner::NAME;
    let mut others = false;
    if !volume.names()?.iter().any(|name| ours(name)) {
        let place = Place::whole(&volume.path().into(), FileOp::List);
        let entries = fs::read_dir(path).map_err(|error| IoError::from_os(place, &error))?;
        // A new file system is not quite empty.
        others = entries.flatten().any(|entry| entry.file_name() != "lost+found");
    }
    if others {
        return Err(DiskError::Foreign { path: volume.path().into() });
    }
    let found = match volume.open(superblock::NAME, OpenFile::default()) {
        Ok(file) => Superblock::read(&*file)?.0,
        // New, or its making was cut short.
        Err(IoError::Gone { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let superblock = found.unwrap_or_else(Superblock::new);
    let (mut sets, mut scan) = (Vec::new(), Scan::default());
    for &(id, geometry) in &superblock.sets {
        let how = OpenFile { direct: true, ..OpenFile::default() };
        match DiskSet::open(&volume, id, geometry, how) {
            Ok(set) => {
                scan.read(&set, &superblock)?;
                sets.push(set);
            }
            // Its files were removed: its blocks are gone.
            Err(IoError::Gone { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    scan.deduplicate();
    Ok(Opened { superblock, sets, scan })
}

/// What is in the directory at `path`. One that is empty, or was only half made, has 0 blocks.
///
/// # Errors
///
/// [`DiskError::Foreign`] for a folder with other files and none of ours, [`DiskError::Version`],
/// and whatever the system says.
pub fn inspect(path: &Path) -> Result<Inspection, DiskError> {
    let Opened { superblock, sets, scan } = open(path)?;
    let count = |test: &dyn Fn(&RecoveredBlock) -> bool| {
        scan.blocks.iter().filter(|block| test(block)).count() as u64
    };
    let named = superblock.fingerprints.iter().enumerate();
    let fingerprints = named.filter_map(|(index, named)| {
        let (id, named) = (FingerprintId(index as u16), named.as_ref()?);
        Some(FingerprintUse {
            digest: named.digest,
            label: named.label.clone(),
            blocks: count(&|block| block.record.fingerprint == id),
        })
    });
    let mut uses = Vec::new();
    for set in &sets {
        uses.push(SetUse {
            id: set.id,
            geometry: set.geometry,
            slots: set.lengths()?.0.into(),
            holes: scan.holes.iter().filter(|slot| slot.set == set.id).count() as u64,
            blocks: count(&|block| block.slot.set == set.id),
        });
    }
    Ok(Inspection {
        format_version: superblock::FORMAT_VERSION,
        generation: superblock.generation,
        fingerprints: fingerprints.collect(),
        sets: uses,
        blocks: scan.blocks.len() as u64,
        bytes: scan.blocks.iter().map(|block| block.record.stored_len).sum(),
        dropped: scan.dropped,
    })
}

/// Reads every block of the directory at `path` and shows it, with how many there are, until `visit`
/// breaks off.
///
/// # Errors
///
/// As for [`inspect`]. A slot that cannot be read is no error: it is shown as such.
pub fn walk(
    path: &Path,
    mut visit: impl FnMut(WalkedSlot<'_>, u64) -> ControlFlow<()>,
) -> Result<(), DiskError> {
    let Opened { superblock, sets, scan } = open(path)?;
    let mut buffer = AlignedBuffer::new(0);
    for set in &sets {
        let slot_bytes = set.geometry.slot_bytes() as usize;
        if buffer.len() < slot_bytes {
            buffer = AlignedBuffer::new(slot_bytes);
        }
        for block in scan.blocks.iter().filter(|block| block.slot.set == set.id) {
            let place = set.place(block.slot.slot);
            let read = read_full(&*place.file, &mut [&mut buffer[..slot_bytes]], place.offset);
            let read = read.map(|()| {
                let (payload, sums) = buffer.split_at(place.payload as usize);
                let sums = sums.chunks_exact(8).take(set.geometry.tiles() as usize);
                let sums = sums.map(|sum| sum.try_into().map_or(0, u64::from_le_bytes)).collect();
                (&payload[..block.record.stored_len as usize], sums)
            });
            let named = superblock.fingerprint(block.record.fingerprint);
            let fingerprint = named.map_or([0; 32], |named| named.digest);
            let shown = WalkedSlot { block, fingerprint, read };
            if visit(shown, scan.blocks.len() as u64).is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}
