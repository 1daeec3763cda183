//! Every block of a directory held against its seal, without owning the directory.
//!
//! A directory does not say how its blocks are cut into regions, only how many tiles they have. The
//! few ways that give this number are tried, and the one that fits is kept: a way that is wrong
//! never fits, since every tile would have to have the sum of another one.

use std::{collections::HashMap, ops::ControlFlow, path::Path};

use crate::{
    seal::{Crc, Fingerprint, Seal, SealRoot, SealTiling, TILE_BYTES},
    storage::disk::{DiskError, WalkedSlot, walk},
    tokens::{Key, SequenceHash},
};

/// What became of the blocks of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verification {
    /// Blocks whose bytes are those that were sealed.
    pub verified: u64,
    /// Blocks whose bytes are not, or cannot be read.
    pub corrupt: u64,
}

/// Reads every block of the directory at `path` and verifies it. `progress` is told how many are
/// done and how many there are, and may break off.
///
/// # Errors
/// As [`inspect`](crate::storage::disk::inspect).
pub fn verify(
    path: &Path,
    mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Verification, DiskError> {
    let mut found = Verification::default();
    let mut regions = HashMap::new();
    walk(path, |slot, total| {
        let known = regions.entry(slot.block.slot.set).or_insert(0);
        if holds(&slot, known) {
            found.verified += 1;
        } else {
            found.corrupt += 1;
        }
        progress(found.verified + found.corrupt, total)
    })?;
    Ok(found)
}

/// Whether a block is what its record says; `regions` is the number that fitted last.
fn holds(slot: &WalkedSlot<'_>, regions: &mut usize) -> bool {
    let Ok((bytes, sums)) = &slot.read else { return false };
    let record = &slot.block.record;
    let key = Key::new(SequenceHash::from_le_bytes(record.key), record.group);
    let fingerprint = Fingerprint::from_bytes(slot.fingerprint);
    let seal = Seal::from_parts(SealRoot::from_bytes(record.seal_root), sums.as_slice());
    // The sums first: they are small, and of no use if they are not the sealed ones.
    if seal.verify_part(&key.to_bytes(), &fingerprint, []).is_err() {
        return false;
    }
    let fits = |regions: usize| sums_of(bytes, regions).is_some_and(|found| found == *sums);
    if *regions > 0 && fits(*regions) {
        return true;
    }
    let ways = (1..=sums.len()).filter(|&regions| {
        sums.len().is_multiple_of(regions) && bytes.len().is_multiple_of(regions) && {
            let region = bytes.len() / regions;
            region.div_ceil(TILE_BYTES) * regions == sums.len()
        }
    });
    match ways.into_iter().find(|&way| fits(way)) {
        Some(way) => {
            *regions = way;
            true
        }
        None => false,
    }
}

fn sums_of(bytes: &[u8], regions: usize) -> Option<Vec<u64>> {
    let tiling = SealTiling::new(regions, bytes.len() / regions).ok()?;
    let region = |region: &[u8]| region.chunks(TILE_BYTES).map(Crc::of).collect::<Vec<_>>();
    Some(bytes.chunks(tiling.region_bytes()).flat_map(region).collect())
}
