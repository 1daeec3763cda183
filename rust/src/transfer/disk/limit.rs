//! A limit that is lower than when the directory was last in use.
//!
//! Room goes back to the drive before anything is stored: that of slots without a block first, then
//! that of the oldest blocks which the tier does not have, because they are of others or too many for
//! it. Its own stay: they are no more than the limit allows, but for the records of the slots that
//! were given up, 256 bytes each, whose room comes back only with the set.

use std::collections::HashSet;

use crate::storage::disk::{DiskDirectory, DiskError, DiskSlot, RecoveredBlock};

/// Slots given up at a time, at most.
const BATCH: u64 = 4096;

/// Gives up slots until the directory keeps its limit, or until nothing is left that would help:
/// those without a block, and those of the blocks at the ends of `lists`, which lose them, the first
/// list's first; never those of its `own`. Where the file system cannot take room back that costs one
/// of them at most.
pub(super) fn keep(
    directory: &DiskDirectory,
    slot_bytes: u64,
    lists: [&mut Vec<RecoveredBlock>; 2],
    own: &[RecoveredBlock],
) -> Result<(), DiskError> {
    if directory.used() <= directory.limit() {
        return Ok(());
    }
    let blocks = lists.iter().flat_map(|list| list.iter()).chain(own);
    let mut empty = empty(directory, &blocks.map(|block| block.slot).collect())?;
    let mut lists = lists.into_iter();
    let mut blocks = lists.next();
    let mut next = || {
        if let Some(slot) = empty.pop() {
            return Some(slot);
        }
        loop {
            match blocks.as_mut()?.pop() {
                Some(block) => return Some(block.slot),
                None => blocks = lists.next(),
            }
        }
    };
    let mut most = 1;
    loop {
        let excess = directory.used().saturating_sub(directory.limit());
        let wanted = excess.div_ceil(slot_bytes).min(most);
        let batch: Vec<DiskSlot> = (0..wanted).map_while(|_| next()).collect();
        if batch.is_empty() || !directory.give_up(&batch)? {
            return Ok(());
        }
        most = BATCH;
    }
}

/// The slots that have room and no block.
fn empty(directory: &DiskDirectory, taken: &HashSet<DiskSlot>) -> Result<Vec<DiskSlot>, DiskError> {
    let mut empty = Vec::new();
    for (set, _, count, _) in directory.sets() {
        let given_up: HashSet<u32> = directory.given_up(set)?.into_iter().collect();
        let with_room = (0..count).filter(|slot| !given_up.contains(slot));
        let slots = with_room.map(|slot| DiskSlot { set, slot });
        empty.extend(slots.filter(|slot| !taken.contains(slot)));
    }
    Ok(empty)
}
