//! What damage costs: what it hit, and nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use dynamo_llm::block_manager::io::FileOp;
use dynamo_llm::block_manager::io::fault::{Crash, FaultVolume, Faults, MemoryVolume};
use dynamo_llm::block_manager::storage::disk::{
    DiskDirectory, DiskError, DropReason, Superblocks, inspect,
};

use crate::rig::*;

#[test]
fn damage_costs_what_it_hit_and_is_counted() {
    let folder = folder();
    drop(fill(folder.path(), 40));
    let (table, data) = (file_ending(folder.path(), ".table"), file_ending(folder.path(), ".data"));
    flip(&table, 3 * 256 + 60);
    // A record in the place of another.
    let bytes = fs::read(&table).unwrap();
    let file = fs::File::options().write(true).open(&table).unwrap();
    file.write_all_at(&bytes[5 * 256..6 * 256], 6 * 256).unwrap();
    // Data of the last ten is gone.
    let slot = geometry().slot_bytes();
    fs::File::options().write(true).open(&data).unwrap().set_len(30 * slot + 100).unwrap();
    assert_eq!(inspect(folder.path()).unwrap().blocks, 28);
    for _ in 0..2 {
        let (directory, recovered) = DiskDirectory::open(folder.path(), options()).unwrap();
        assert_eq!(recovered.report.kept, 28);
        drop(directory);
    }
    // Room that comes back brings no records back.
    let (directory, _) = DiskDirectory::open(folder.path(), options()).unwrap();
    grow(&directory, 10);
    drop(directory);
    let (_, recovered) = DiskDirectory::open(folder.path(), options()).unwrap();
    assert_eq!(recovered.report.kept, 28);
    let expected = (0..30).filter(|v| ![3, 6].contains(v)).collect::<Vec<_>>();
    assert_eq!(versions(&recovered), expected);
}

#[test]
fn the_reasons_are_told_apart() {
    let folder = folder();
    drop(fill(folder.path(), 40));
    let table = file_ending(folder.path(), ".table");
    flip(&table, 3 * 256 + 60);
    let bytes = fs::read(&table).unwrap();
    let file = fs::File::options().write(true).open(&table).unwrap();
    file.write_all_at(&bytes[5 * 256..6 * 256], 6 * 256).unwrap();
    let data = fs::File::options().write(true).open(file_ending(folder.path(), ".data")).unwrap();
    data.set_len(30 * geometry().slot_bytes()).unwrap();
    let (_, recovered) = DiskDirectory::open(folder.path(), options()).unwrap();
    let expected = [(DropReason::Torn, 1), (DropReason::Misplaced, 1), (DropReason::NoData, 10)];
    assert_eq!(recovered.report.dropped, BTreeMap::from(expected));
}

#[test]
fn files_that_vanish_cost_their_blocks_and_nothing_else() {
    for end in [".data", ".table", "dynamo.super", "dynamo.lock"] {
        let folder = folder();
        let (directory, slots) = fill(folder.path(), 5);
        fs::remove_file(file_ending(folder.path(), end)).unwrap();
        // The owner goes on with what it has open.
        directory.tombstone(&slots[..2]).unwrap();
        assert!(is_there(&directory, slots[3], 3));
        drop(directory);
        let (directory, recovered) = DiskDirectory::open(folder.path(), options()).unwrap();
        let kept = if end == "dynamo.lock" { 3 } else { 0 };
        assert_eq!(recovered.report.kept, kept, "{end}");
        assert_eq!(recovered.report.superblocks == Superblocks::Fresh, end == "dynamo.super");
        grow(&directory, 1);
    }
}

#[test]
fn strays_of_ours_are_removed_and_other_files_are_not_touched() {
    let folder = folder();
    drop(fill(folder.path(), 5));
    let others = ["notes.txt", "dynamo-zz.data", "dynamo-0000000G.table", "dynamo-1.storage"];
    let strays = ["dynamo-000000ff.data", "dynamo-0badcafe.table"];
    for name in others.iter().chain(&strays) {
        fs::write(folder.path().join(name), name).unwrap();
    }
    let (directory, recovered) = DiskDirectory::open(folder.path(), options()).unwrap();
    assert_eq!(recovered.report.removed, strays);
    assert_eq!(recovered.report.kept, 5);
    drop(directory);
    // Without reuse, and after the loss of both superblocks, all of ours goes.
    let mut fresh = options();
    fresh.reuse = false;
    let (directory, recovered) = DiskDirectory::open(folder.path(), fresh).unwrap();
    assert_eq!((recovered.report.kept, recovered.report.removed.len()), (0, 2));
    drop(directory);
    drop(fill(folder.path(), 5));
    let superblock = folder.path().join("dynamo.super");
    flip(&superblock, 100);
    flip(&superblock, (64 << 10) + 100);
    let (directory, recovered) = DiskDirectory::open(folder.path(), options()).unwrap();
    assert_eq!(recovered.report.superblocks, Superblocks::Lost);
    assert_eq!(recovered.report.kept, 0);
    drop(directory);
    for name in others {
        assert_eq!(fs::read_to_string(folder.path().join(name)).unwrap(), name);
    }
    // A later format is left alone.
    let file = fs::File::options().write(true).open(&superblock).unwrap();
    file.write_all_at(&[9], 8).unwrap();
    for error in [
        DiskDirectory::open(folder.path(), options()).unwrap_err(),
        inspect(folder.path()).unwrap_err(),
    ] {
        assert_eq!(error, DiskError::Version { found: 9, known: 1 });
    }
    assert!(file_ending(folder.path(), ".data").exists());
}

#[test]
fn a_sector_that_cannot_be_read_costs_its_records() {
    let volume = MemoryVolume::new();
    {
        let (directory, _) = DiskDirectory::open_on(Arc::new(volume.clone()), options()).unwrap();
        let fingerprint = directory.fingerprint(DIGEST, "").unwrap();
        for (at, slot) in grow(&directory, 40).into_iter().enumerate() {
            put(&directory, slot, fingerprint, at as u64, at as u64).unwrap();
        }
    }
    // Some reads fail: whichever they hit, nothing wrong is found and nothing panics.
    let (mut opened, mut unreadable) = (0, 0);
    for seed in 0..200 {
        let faults = Faults { errors: 0.3, only: Some(FileOp::Read), ..Faults::none(seed) };
        let faulty = FaultVolume::new(Arc::new(volume.after(Crash::Kill)), faults);
        let Ok((_, recovered)) = DiskDirectory::open_on(Arc::new(faulty), options()) else {
            continue;
        };
        opened += 1;
        let lost = recovered.report.dropped.get(&DropReason::Unreadable).copied().unwrap_or(0);
        unreadable += lost;
        if recovered.report.superblocks != Superblocks::Lost {
            assert_eq!(recovered.report.kept + lost, 40);
        }
    }
    assert!(opened > 100 && unreadable > 0, "{opened} {unreadable}");
}
