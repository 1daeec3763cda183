//! The limit is one, and a full drive is an error that leaves everything as it was.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::Arc;

use dynamo_llm::block_manager::io::IoError;
use dynamo_llm::block_manager::io::fault::{Crash, MemoryVolume};
use dynamo_llm::block_manager::storage::disk::{
    DiskDirectory, DiskError, DiskFinding, DiskOptions, DiskSlot, Durability, Preallocation,
    inspect,
};

use crate::rig::*;

#[test]
fn the_limit_covers_everything() {
    let folder = folder();
    let mut options = options();
    options.bytes = MIB;
    let (directory, _) = DiskDirectory::open(folder.path(), options).unwrap();
    let fingerprint = directory.fingerprint(DIGEST, "model").unwrap();
    let on_drive = || {
        let files = fs::read_dir(folder.path()).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum::<u64>()
    };
    let mut slots = Vec::new();
    let error = loop {
        match directory.grow(directory.current(), 10) {
            Ok(range) => {
                slots.extend(range.map(|slot| DiskSlot { set: directory.current(), slot }));
            }
            Err(error) => break error,
        }
        for (version, &slot) in slots.iter().enumerate().skip(slots.len() - 10) {
            put(&directory, slot, fingerprint, version as u64, version as u64).unwrap();
        }
        assert!(on_drive() <= MIB, "{}", on_drive());
        // Tables are rounded up to whole pages, everything else is exact.
        assert!(directory.used().abs_diff(on_drive()) <= 8192);
    };
    assert!(matches!(error, DiskError::LimitReached { limit: MIB, .. }), "{error}");
    assert!(slots.len() >= 100);

    // Room that is given up is room on the drive, and can be had again.
    directory.sync().unwrap();
    let before = on_drive();
    assert!(directory.give_up(&slots[20..60]).unwrap());
    // A file in more pieces may cost the file system a page or two of its own.
    let given_up = 40 * geometry().slot_bytes();
    let freed = before - on_drive();
    assert!(freed <= given_up && freed >= given_up - 8192, "{freed} of {given_up}");
    let stale = record(&directory, fingerprint, 1, 1);
    let refused = directory.write_records(&[(slots[30], stale)]);
    assert!(matches!(refused, Err(DiskError::SlotGivenUp { .. })));
    drop(directory);
    let mut again = DiskOptions::new(MIB, geometry());
    again.durability = Durability::Power;
    let (directory, recovered) = DiskDirectory::open(folder.path(), again).unwrap();
    assert_eq!(recovered.report.kept as usize, slots.len() - 40);
    assert_eq!(directory.sets()[0].3, 40, "holes are remembered");
    directory.take_back(&slots[20..60]).unwrap();
    assert!(on_drive() <= MIB);
    put(&directory, slots[30], directory.fingerprint(DIGEST, "").unwrap(), 1, 1).unwrap();
}

#[test]
fn a_file_system_that_reserves_no_room_is_used_sparsely_unless_that_is_forbidden() {
    let volume = MemoryVolume::new();
    volume.set_abilities(false, false);
    let (directory, _) = DiskDirectory::open_on(Arc::new(volume.clone()), options()).unwrap();
    let slots = grow(&directory, 10);
    assert!(directory.findings().contains(&DiskFinding::Sparse));
    let fingerprint = directory.fingerprint(DIGEST, "").unwrap();
    put(&directory, slots[0], fingerprint, 0, 0).unwrap();
    assert!(!directory.give_up(&slots[..1]).unwrap());
    assert!(directory.findings().contains(&DiskFinding::NoPunching));
    put(&directory, slots[0], fingerprint, 1, 1).unwrap();
    drop(directory);
    let mut strict = options();
    strict.preallocation = Preallocation::Require;
    let (directory, recovered) = DiskDirectory::open_on(Arc::new(volume), strict).unwrap();
    assert_eq!(versions(&recovered), [1]);
    let error = directory.grow(directory.current(), 1).unwrap_err();
    assert!(matches!(error, DiskError::Io(IoError::Unsupported { .. })), "{error}");
    assert_eq!(directory.sets()[0].2, 10);
}

#[test]
fn a_full_drive_is_an_error_that_leaves_everything_as_it_was() {
    for sparse in [false, true] {
        let volume = MemoryVolume::new();
        volume.set_abilities(!sparse, true);
        let (directory, _) = DiskDirectory::open_on(Arc::new(volume.clone()), options()).unwrap();
        let fingerprint = directory.fingerprint(DIGEST, "").unwrap();
        volume.set_capacity(volume.used() + 10 * geometry().slot_bytes());
        let mut acknowledged = BTreeSet::new();
        let mut refused = 0;
        for version in 0..20 {
            let set = directory.current();
            let stored = directory.grow(set, 1).and_then(|slots| {
                let slot = DiskSlot { set, slot: slots.start };
                put(&directory, slot, fingerprint, version, version)
            });
            match stored {
                Ok(()) => drop(acknowledged.insert(version)),
                Err(DiskError::Io(IoError::NoSpace { .. })) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(refused >= 10 && acknowledged.len() >= 9, "{sparse}: {acknowledged:?}");
        drop(directory);
        let volume = volume.after(Crash::Kill);
        let (directory, recovered) = DiskDirectory::open_on(Arc::new(volume), options()).unwrap();
        assert_eq!(versions(&recovered).into_iter().collect::<BTreeSet<_>>(), acknowledged);
        for block in recovered.blocks {
            assert!(is_there(&directory, block.slot, version(block.record.seal_root)));
        }
    }
}

#[test]
fn a_small_tmpfs_fills_up_and_goes_read_only() {
    let name = "room::a_small_tmpfs_fills_up_and_goes_read_only";
    let Some(folder) = crate::tmpfs::inside(name, "1m") else { return };
    let path = folder.as_path();
    let remount = |how: &str| {
        let status = Command::new("mount").args(["-o", how]).arg(path).status().unwrap();
        assert!(status.success());
    };
    let (directory, _) = DiskDirectory::open(path, options()).unwrap();
    let fingerprint = directory.fingerprint(DIGEST, "").unwrap();
    let mut stored = 0;
    let error = loop {
        let set = directory.current();
        match directory.grow(set, 8) {
            Ok(range) => {
                for slot in range {
                    let slot = DiskSlot { set, slot };
                    put(&directory, slot, fingerprint, stored, stored).unwrap();
                    stored += 1;
                }
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(error, DiskError::Io(IoError::NoSpace { .. })), "{error}");
    assert!(stored > 50);
    drop(directory);
    remount("remount,ro");
    let error = DiskDirectory::open(path, options()).unwrap_err();
    assert!(matches!(error, DiskError::Io(IoError::ReadOnly { .. })), "{error}");
    assert_eq!(inspect(path).unwrap().blocks, stored);
    remount("remount,rw");
    let (_, recovered) = DiskDirectory::open(path, options()).unwrap();
    assert_eq!(recovered.report.kept, stored);
}
