//! What a directory keeps of a block, what it refuses, and whose blocks are whose.

use std::collections::BTreeSet;
use std::sync::Arc;

use dynamo_llm::block_manager::io::fault::MemoryVolume;
use dynamo_llm::block_manager::storage::disk::{
    DiskDirectory, DiskError, DiskRecord, DiskSlot, DropReason, Geometry, Superblocks, inspect,
};

use crate::rig::*;

#[test]
fn everything_of_a_record_is_found_again() {
    let folder = folder();
    let (directory, slots) = fill(folder.path(), 100);
    let fingerprint = directory.fingerprint(DIGEST, "model").unwrap();
    let expected: Vec<_> = (0..100).map(|v| record(&directory, fingerprint, v, v)).collect();
    directory.touch(&[(slots[9], 777), (slots[10], 778)]).unwrap();
    directory.tombstone(&slots[10..20]).unwrap();
    directory.touch(&[(slots[10], 779)]).unwrap();
    drop(directory);

    let (directory, recovered) = DiskDirectory::open(folder.path(), options()).unwrap();
    let report = &recovered.report;
    assert_eq!((report.kept, report.dropped.len()), (90, 0));
    assert_eq!((report.superblocks, &report.died), (Superblocks::Whole, &None));
    for block in &recovered.blocks {
        let mut expected = expected[block.slot.slot as usize].clone();
        if block.slot == slots[9] {
            expected.last_use = 777;
        }
        assert_eq!(block.record, expected);
        assert!(is_there(&directory, block.slot, u64::from(block.slot.slot)));
    }
    assert_eq!(directory.fingerprint_of(fingerprint), Some((DIGEST, "model".to_owned())));
    let sequences: BTreeSet<_> = recovered.blocks.iter().map(|block| block.sequence).collect();
    assert_eq!(sequences.len(), 90);
}

#[test]
fn the_rules_of_slots_are_kept() {
    let folder = folder();
    let (directory, slots) = fill(folder.path(), 4);
    let fingerprint = directory.fingerprint(DIGEST, "model").unwrap();
    let fresh = record(&directory, fingerprint, 9, 9);
    let write = |slot, record: &DiskRecord| directory.write_records(&[(slot, record.clone())]);
    assert!(matches!(write(slots[0], &fresh), Err(DiskError::SlotInUse { .. })));
    let beyond = DiskSlot { slot: 4, ..slots[0] };
    assert!(matches!(write(beyond, &fresh), Err(DiskError::NoSuchSlot { slots: 4, .. })));
    directory.tombstone(&slots).unwrap();
    directory.tombstone(&slots).unwrap();
    let twice = [(slots[0], fresh.clone()), (slots[0], fresh.clone())];
    assert!(matches!(directory.write_records(&twice), Err(DiskError::SlotInUse { .. })));
    let too_long = DiskRecord { stored_len: 1001, ..fresh.clone() };
    assert!(matches!(write(slots[0], &too_long), Err(DiskError::InvalidConfig { .. })));
    // A reset between the store and its record: the block is not acknowledged.
    directory.next_generation(1, 0, drop).unwrap();
    assert!(matches!(write(slots[0], &fresh), Err(DiskError::WrongGeneration { .. })));
    write(slots[0], &DiskRecord { generation: directory.generation(), ..fresh }).unwrap();
}

#[test]
fn a_reset_hides_every_block_for_good() {
    let folder = folder();
    let (directory, slots) = fill(folder.path(), 10);
    assert_eq!(directory.next_generation(1, 0, drop).unwrap(), 2);
    let fingerprint = directory.fingerprint(DIGEST, "model").unwrap();
    put(&directory, slots[3], fingerprint, 50, 50).unwrap();
    drop(directory);
    // Even with the newer copy of the superblock damaged.
    for copy in [0, 64 << 10] {
        flip(&folder.path().join("dynamo.super"), copy + 100);
        let (_, recovered) = DiskDirectory::open(folder.path(), options()).unwrap();
        assert_eq!(versions(&recovered), [50]);
        assert_eq!(recovered.report.dropped[&DropReason::Generation], 9);
        assert_eq!(recovered.report.superblocks, Superblocks::OneCopy);
    }
}

#[test]
fn models_live_side_by_side_and_find_their_blocks_again() {
    let folder = folder();
    let (directory, _) = fill(folder.path(), 10);
    let first = directory.current();
    drop(directory);
    let mut other = options();
    other.geometry = Geometry::new(5000, 1).unwrap();
    let (directory, recovered) = DiskDirectory::open(folder.path(), other.clone()).unwrap();
    assert_eq!(recovered.report.kept, 10);
    assert_ne!(directory.current(), first);
    assert_eq!(directory.sets().len(), 2);
    assert!(matches!(directory.remove_set(first), Err(DiskError::SetInUse { .. })));
    drop(directory);
    let (directory, _) = DiskDirectory::open(folder.path(), options()).unwrap();
    assert_eq!(directory.current(), first);
    drop(directory);
    let (directory, recovered) = DiskDirectory::open(folder.path(), other).unwrap();
    let slots: Vec<_> = recovered.blocks.iter().map(|block| block.slot).collect();
    directory.tombstone(&slots).unwrap();
    directory.remove_set(first).unwrap();
    assert!(matches!(directory.place(slots[0]), Err(DiskError::NoSuchSet { .. })));
    let inspection = inspect(folder.path()).unwrap();
    assert_eq!(inspection.sets.len(), 1);
}

#[test]
fn a_full_table_of_fingerprints_forgets_one_without_blocks() {
    let volume = MemoryVolume::new();
    let (directory, _) = DiskDirectory::open_on(Arc::new(volume.clone()), options()).unwrap();
    let digest = |number: u16| {
        let mut digest = [1; 32];
        digest[..2].copy_from_slice(&number.to_le_bytes());
        digest
    };
    let slots = grow(&directory, 2);
    for number in 0..256 {
        let id = directory.fingerprint(digest(number), "label").unwrap();
        if number == 0 {
            put(&directory, slots[0], id, 5, 5).unwrap();
        }
    }
    let full = directory.fingerprint(digest(256), "one more").unwrap_err();
    assert!(matches!(full, DiskError::TableFull { .. }), "{full}");
    drop(directory);
    let (directory, _) = DiskDirectory::open_on(Arc::new(volume.clone()), options()).unwrap();
    let id = directory.fingerprint(digest(256), "one more").unwrap();
    assert_eq!(id.index(), 1, "the first without blocks");
    assert_eq!(directory.fingerprint(digest(0), "").unwrap().index(), 0);
    drop(directory);
    let (_, recovered) = DiskDirectory::open_on(Arc::new(volume), options()).unwrap();
    assert_eq!(versions(&recovered), [5]);
}
