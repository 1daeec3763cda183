//! The directory of blocks on a drive: what is found again after every kind of end, what is refused,
//! and that the limit is one.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use dynamo_llm::block_manager::io::fault::{Crash, FaultVolume, Faults, MemoryVolume};
use dynamo_llm::block_manager::io::{
    AlignedBuffer, FileOp, IoError, IoMemory, OpenFile, Volume, read_full, write_full,
};
use dynamo_llm::block_manager::storage::disk::{
    DiskDirectory, DiskError, DiskFinding, DiskOptions, DiskRecord, DiskSlot, DropReason,
    Durability, EngineName, FingerprintId, Geometry, Preallocation, Recovered, SlotMemory,
    Superblocks, inspect, walk,
};
use dynamo_llm::block_manager::storage::{
    DiskAllocator, DiskStorage, Storage, StorageAccess, StorageAllocator, StorageError,
    StorageType, SystemStorage,
};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const PAYLOAD: usize = 1000;
const TILES: usize = 2;
const DIGEST: [u8; 32] = [7; 32];

fn geometry() -> Geometry {
    Geometry::new(PAYLOAD as u64, TILES as u32).unwrap()
}

fn options() -> DiskOptions {
    DiskOptions::new(64 * MIB, geometry())
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn name(version: u64) -> [u8; 16] {
    let mut name = [0xab; 16];
    name[..8].copy_from_slice(&version.to_le_bytes());
    name
}

fn version(name: [u8; 16]) -> u64 {
    u64::from_le_bytes(name[..8].try_into().unwrap())
}

fn record(
    directory: &DiskDirectory,
    fingerprint: FingerprintId,
    key: u64,
    version: u64,
) -> DiskRecord {
    DiskRecord {
        key: name(key),
        group: 3,
        engine: EngineName::new(&[key as u8; 36]).unwrap(),
        parent: (version % 2 == 1).then(|| name(version - 1)),
        depth: version as u32,
        fingerprint,
        codec: 0,
        stored_len: PAYLOAD as u64,
        seal_root: name(version),
        generation: directory.generation(),
        last_use: version,
    }
}

/// The bytes of a slot: payload, padding, sums, padding.
fn bytes(version: u64) -> AlignedBuffer {
    let slot = geometry().slot_bytes() as usize;
    let mut buffer = AlignedBuffer::new(slot);
    for (at, byte) in buffer.iter_mut().enumerate() {
        *byte = (version as u8) ^ (at / 512) as u8 ^ 0x5a;
    }
    let sums = geometry().padded_payload() as usize;
    buffer[sums..sums + 8].copy_from_slice(&version.to_le_bytes());
    buffer
}

fn put(
    directory: &DiskDirectory,
    slot: DiskSlot,
    fingerprint: FingerprintId,
    key: u64,
    version: u64,
) -> Result<(), DiskError> {
    let place = directory.place(slot)?;
    write_full(&*place.file, &[&bytes(version)], place.offset)?;
    directory.write_records(&[(slot, record(directory, fingerprint, key, version))])
}

fn is_there(directory: &DiskDirectory, slot: DiskSlot, version: u64) -> bool {
    let place = directory.place(slot).unwrap();
    let mut found = AlignedBuffer::new((place.payload + place.sums) as usize);
    read_full(&*place.file, &mut [&mut found], place.offset).unwrap();
    *found == *bytes(version)
}

fn grow(directory: &DiskDirectory, slots: u32) -> Vec<DiskSlot> {
    let set = directory.current();
    directory.grow(set, slots).unwrap().map(|slot| DiskSlot { set, slot }).collect()
}

/// A directory at `path` with blocks 0..count.
fn fill(path: &Path, count: u32) -> (DiskDirectory, Vec<DiskSlot>) {
    let (directory, _) = DiskDirectory::open(path, options()).unwrap();
    let fingerprint = directory.fingerprint(DIGEST, "model").unwrap();
    let slots = grow(&directory, count);
    for (at, &slot) in slots.iter().enumerate() {
        put(&directory, slot, fingerprint, at as u64, at as u64).unwrap();
    }
    (directory, slots)
}

fn versions(recovered: &Recovered) -> Vec<u64> {
    recovered.blocks.iter().map(|block| version(block.record.seal_root)).collect()
}

fn file_ending(path: &Path, end: &str) -> PathBuf {
    let mut entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.find(|path| path.to_str().unwrap().ends_with(end)).unwrap()
}

/// Changes a byte of a file.
fn flip(path: &Path, at: u64) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

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
    directory.next_generation().unwrap();
    assert!(matches!(write(slots[0], &fresh), Err(DiskError::WrongGeneration { .. })));
    write(slots[0], &DiskRecord { generation: directory.generation(), ..fresh }).unwrap();
}

#[test]
fn a_reset_hides_every_block_for_good() {
    let folder = folder();
    let (directory, slots) = fill(folder.path(), 10);
    assert_eq!(directory.next_generation().unwrap(), 2);
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
fn a_second_owner_is_told_who_has_the_directory() {
    let folder = folder();
    let (directory, slots) = fill(folder.path(), 1);
    let error = DiskDirectory::open(folder.path(), options()).unwrap_err();
    let DiskError::Locked { holder: Some(holder), .. } = &error else { panic!("{error}") };
    assert_eq!(holder.pid as u32, std::process::id());
    assert!(error.to_string().contains(&format!("process {}", holder.pid)), "{error}");
    assert_eq!(inspect(folder.path()).unwrap().blocks, 1, "looking is always allowed");

    // An operation that outlives its owner still has the directory.
    let place = directory.place(slots[0]).unwrap();
    drop(directory);
    let again = DiskDirectory::open(folder.path(), options());
    assert!(matches!(again, Err(DiskError::Locked { .. })));
    drop(place);
    let (_, recovered) = DiskDirectory::open(folder.path(), options()).unwrap();
    assert_eq!(recovered.report.died, None);
}

/// Not a test by itself: what the child of the next one runs.
#[test]
fn child_that_is_killed() {
    let Some(path) = std::env::var_os("DYNAMO_TEST_DISK_CHILD") else { return };
    let (_directory, _) = fill(Path::new(&path), 20);
    println!("\nready");
    std::io::stdin().lines().for_each(drop);
}

#[test]
fn a_killed_owner_leaves_its_blocks_its_name_and_no_lock() {
    let folder = folder();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_is_killed", "--nocapture"])
        .env("DYNAMO_TEST_DISK_CHILD", folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line == "ready"));
    let error = DiskDirectory::open(folder.path(), options()).unwrap_err();
    assert!(error.to_string().contains(&format!("process {}", child.id())), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();
    let (directory, recovered) = DiskDirectory::open(folder.path(), options()).unwrap();
    assert_eq!(recovered.report.died.unwrap().pid as u32, child.id());
    assert_eq!(recovered.report.kept, 20);
    assert!(recovered.blocks.iter().all(|b| is_there(&directory, b.slot, b.slot.slot.into())));
}

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
    let before = on_drive();
    assert!(directory.give_up(&slots[20..60]).unwrap());
    assert_eq!(before - on_drive(), 40 * geometry().slot_bytes());
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

/// A file system of its own, where the test may mount one.
struct Mount(tempfile::TempDir);

impl Mount {
    fn new(options: &str) -> Option<Self> {
        let folder = folder();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(folder.path());
        let done = mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
        if !done {
            eprintln!("skipped: no permission to mount a tmpfs");
        }
        done.then_some(Self(folder))
    }

    fn remount(&self, options: &str) {
        let mut mount = Command::new("mount");
        let status = mount.args(["-o", options]).arg(self.0.path()).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_small_tmpfs_fills_up_and_goes_read_only() {
    let Some(mount) = Mount::new("size=1m") else { return };
    let path = mount.0.path();
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
    mount.remount("remount,ro");
    let error = DiskDirectory::open(path, options()).unwrap_err();
    assert!(matches!(error, DiskError::Io(IoError::ReadOnly { .. })), "{error}");
    assert_eq!(inspect(path).unwrap().blocks, stored);
    mount.remount("remount,rw");
    let (_, recovered) = DiskDirectory::open(path, options()).unwrap();
    assert_eq!(recovered.report.kept, stored);
}

#[test]
fn a_directory_that_cannot_be_made_is_an_error_with_its_path() {
    let folder = folder();
    fs::write(folder.path().join("file"), "").unwrap();
    let error = DiskDirectory::open(&folder.path().join("file/below"), options()).unwrap_err();
    assert!(error.to_string().contains("file/below"), "{error}");
}

#[test]
fn looking_writes_nothing_and_tells_new_from_foreign() {
    let folder = folder();
    let path = folder.path();
    assert_eq!(inspect(path).unwrap().blocks, 0);
    fs::write(path.join("dynamo.super"), "DYNAMO").unwrap();
    assert_eq!(inspect(path).unwrap().blocks, 0, "half made");
    fs::remove_file(path.join("dynamo.super")).unwrap();
    fs::create_dir(path.join("photos")).unwrap();
    assert!(matches!(inspect(path), Err(DiskError::Foreign { .. })));
    assert!(matches!(inspect(&path.join("nowhere")), Err(DiskError::Io(IoError::Gone { .. }))));

    drop(fill(path, 12));
    let inspection = inspect(path).unwrap();
    assert_eq!((inspection.format_version, inspection.generation), (1, 1));
    assert_eq!((inspection.blocks, inspection.bytes), (12, 12 * PAYLOAD as u64));
    assert_eq!(inspection.fingerprints[0].blocks, 12);
    assert_eq!(inspection.sets[0].slots, 12);

    let mut seen = 0;
    walk(path, |slot, total| {
        let (payload, sums) = slot.read.unwrap();
        let version = version(slot.block.record.seal_root);
        assert_eq!((slot.fingerprint, total), (DIGEST, 12));
        assert_eq!(payload, &bytes(version)[..PAYLOAD]);
        assert_eq!((sums[0], sums.len()), (version, TILES));
        seen += 1;
        if seen == 7 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap();
    assert_eq!(seen, 7);
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

#[test]
fn a_disk_storage_has_room_and_no_bytes_for_the_cpu() {
    let folder = folder();
    let path = folder.path().join("region");
    let storage = DiskStorage::new(&path, 10_000).unwrap();
    assert!(matches!(storage.storage_type(), StorageType::Disk(_)));
    assert_eq!((storage.size(), storage.addr()), (10_000, 0));
    assert!(matches!(storage.ptr_at(0, 1), Err(StorageError::NotAccessible { .. })));
    assert_eq!(fs::metadata(&path).unwrap().blocks() * 512, 12_288);
    let error = DiskStorage::new(&path, 1).unwrap_err();
    assert!(error.to_string().contains("not there yet"), "{error}");
    let page = AlignedBuffer::new(4096);
    write_full(&**storage.file(), &[&page], 8192).unwrap();
    drop(storage);
    assert!(!path.exists());

    let allocator = DiskAllocator::new(folder.path());
    let [a, b] = [(); 2].map(|()| allocator.allocate(4096).unwrap());
    assert_ne!(a.storage_type(), b.storage_type());
    assert!(allocator.allocate(0).is_err());
    let nowhere = DiskAllocator::new("/nowhere").allocate(1).unwrap_err();
    assert!(matches!(nowhere, StorageError::OperationFailed { .. }), "{nowhere}");
    drop((a, b));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_slot_of_memory_is_written_and_read_where_it_lies() {
    let storage: Arc<dyn Storage> = Arc::new(SystemStorage::new(3 * 4096).unwrap());
    let handle = || Box::new(()) as Box<dyn std::any::Any + Send>;
    // SAFETY: nobody else uses this storage.
    let mut target = unsafe { SlotMemory::target(storage.clone(), 4096, 4096, handle()) }.unwrap();
    target.bytes_mut().unwrap().fill(9);
    assert!(target.into_handle().is::<()>());
    // SAFETY: as above.
    let mut source = unsafe { SlotMemory::source(storage.clone(), 0, 8192, handle()) }.unwrap();
    assert!(source.bytes_mut().is_none());
    assert_eq!(source.bytes()[4095..4097], [0, 9]);
    // SAFETY: as above.
    let outside = unsafe { SlotMemory::source(storage, 8192, 4097, handle()) };
    assert!(matches!(outside, Err(StorageError::OutOfBounds { .. })));
}

/// What a history does next.
#[derive(Clone, Debug)]
enum Op {
    Store,
    /// Stores a newer version of a block that is there.
    Replace(usize),
    Evict(usize),
    Touch(usize),
    GiveUp(usize),
    Reset,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => Just(Op::Store),
        3 => any::<usize>().prop_map(Op::Replace),
        4 => any::<usize>().prop_map(Op::Evict),
        2 => any::<usize>().prop_map(Op::Touch),
        1 => any::<usize>().prop_map(Op::GiveUp),
        1 => Just(Op::Reset),
    ];
    prop::collection::vec(op, 1..25)
}

/// What is known of the blocks: by version, the key and the slot.
#[derive(Default)]
struct Model {
    next: u64,
    /// Acknowledged and not evicted.
    there: BTreeMap<u64, (u64, DiskSlot)>,
    /// May be found or not: stores and evictions under way.
    unsure: BTreeMap<u64, (u64, DiskSlot)>,
    free: Vec<DiskSlot>,
    /// Stored before a reset that has returned.
    reset: BTreeSet<u64>,
}

impl Model {
    fn pick(&self, number: usize) -> Option<(u64, (u64, DiskSlot))> {
        let at = number % self.there.len().max(1);
        self.there.iter().nth(at).map(|(&version, &block)| (version, block))
    }

    fn forget(&mut self, version: u64) {
        let block = self.there.remove(&version);
        self.unsure.extend(block.map(|block| (version, block)));
    }

    fn run(&mut self, directory: &DiskDirectory, op: &Op) -> Result<(), DiskError> {
        let fingerprint = directory.fingerprint(DIGEST, "model")?;
        match *op {
            Op::Store => self.store(directory, fingerprint, None)?,
            Op::Replace(number) => self.store(directory, fingerprint, self.pick(number))?,
            Op::Evict(number) | Op::GiveUp(number) => {
                let Some((version, (_, slot))) = self.pick(number) else { return Ok(()) };
                self.forget(version);
                if matches!(op, Op::Evict(_)) {
                    directory.tombstone(&[slot])?;
                } else {
                    directory.give_up(&[slot])?;
                    directory.take_back(&[slot])?;
                }
                self.unsure.remove(&version);
                self.free.push(slot);
            }
            Op::Touch(number) => {
                let Some((version, (_, slot))) = self.pick(number) else { return Ok(()) };
                directory.touch(&[(slot, version + 1000)])?;
            }
            Op::Reset => {
                let all: Vec<u64> = self.there.keys().copied().collect();
                for version in all {
                    self.forget(version);
                }
                directory.next_generation()?;
                for (version, (_, slot)) in std::mem::take(&mut self.unsure) {
                    self.reset.insert(version);
                    self.free.push(slot);
                }
            }
        }
        Ok(())
    }

    fn store(
        &mut self,
        directory: &DiskDirectory,
        fingerprint: FingerprintId,
        replaced: Option<(u64, (u64, DiskSlot))>,
    ) -> Result<(), DiskError> {
        if self.free.is_empty() {
            let set = directory.current();
            self.free.extend(directory.grow(set, 3)?.map(|slot| DiskSlot { set, slot }));
        }
        let slot = self.free.pop().unwrap();
        let version = self.next;
        self.next += 1;
        let key = replaced.map_or(version, |(_, (key, _))| key);
        if let Some((old, _)) = replaced {
            self.forget(old);
        }
        self.unsure.insert(version, (key, slot));
        put(directory, slot, fingerprint, key, version)?;
        self.unsure.remove(&version);
        self.there.insert(version, (key, slot));
        if let Some((old, (_, slot))) = replaced {
            directory.tombstone(&[slot])?;
            self.unsure.remove(&old);
            self.free.push(slot);
        }
        Ok(())
    }

    /// Compares with what was found, and goes on from there. Fails when the volume stops while slots
    /// that were given up are taken back.
    fn compare(
        &mut self,
        directory: &DiskDirectory,
        recovered: &Recovered,
        loses: bool,
    ) -> Result<(), DiskError> {
        let mut found = BTreeMap::new();
        for block in &recovered.blocks {
            let (version, key) = (version(block.record.seal_root), version(block.record.key));
            found.insert(version, (key, block.slot));
            assert!(!self.reset.contains(&version), "{version} was reset");
            if loses {
                // Only the seal can tell here.
                continue;
            }
            let known = self.there.get(&version).or_else(|| self.unsure.get(&version));
            assert_eq!(known, Some(&(key, block.slot)), "{version} is a phantom");
            assert!(is_there(directory, block.slot, version), "{version} has other bytes");
            assert!([version, version + 1000].contains(&block.record.last_use));
        }
        if !loses {
            for version in self.there.keys() {
                assert!(found.contains_key(version), "{version} was lost");
            }
        }
        let set = directory.current();
        let used: BTreeSet<_> = found.values().map(|&(_, slot)| slot).collect();
        let (_, _, slots, holes) = directory.sets()[0];
        self.free = (0..slots).map(|slot| DiskSlot { set, slot }).collect();
        self.free.retain(|slot| !used.contains(slot));
        self.there = found;
        self.unsure.clear();
        if holes > 0 { directory.take_back(&self.free) } else { Ok(()) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any history, stopped at any operation by a kill or a power failure, again and again.
    #[test]
    fn no_end_loses_what_was_acknowledged_or_shows_what_was_not_written(
        rounds in prop::collection::vec((ops(), 1_u64..150, any::<u64>()), 1..5),
        durability in prop_oneof![Just(Durability::Process), Just(Durability::Power)],
        power_fails: bool,
        direct: bool,
    ) {
        let mut options = options();
        options.durability = durability;
        options.direct = direct;
        let loses = power_fails && durability == Durability::Process;
        let mut volume = MemoryVolume::new();
        let mut model = Model::default();
        for (ops, stop, seed) in rounds {
            volume.stop_after(stop, seed);
            // The stop may come while the directory is being opened.
            if let Ok((directory, recovered)) =
                DiskDirectory::open_on(Arc::new(volume.clone()), options.clone())
                && model.compare(&directory, &recovered, loses).is_ok()
            {
                for op in &ops {
                    if model.run(&directory, op).is_err() {
                        break;
                    }
                }
            }
            let crash = if power_fails { Crash::Power { seed } } else { Crash::Kill };
            volume = volume.after(crash);
        }
        let (directory, recovered) =
            DiskDirectory::open_on(Arc::new(volume.clone()), options.clone()).unwrap();
        model.compare(&directory, &recovered, loses).unwrap();
        drop(directory);
        let (_, again) = DiskDirectory::open_on(Arc::new(volume), options).unwrap();
        prop_assert_eq!(again.blocks, recovered.blocks);
        prop_assert_eq!(again.report.superblocks, Superblocks::Whole);
    }
}

#[test]
fn the_order_of_writes_and_syncs_can_be_seen_in_a_volume_that_stops_at_every_operation() {
    // One store, one eviction, one reset, stopped at each of their operations in turn.
    let mut options = options();
    options.durability = Durability::Power;
    let prepare = || {
        let volume = MemoryVolume::new();
        let (directory, _) =
            DiskDirectory::open_on(Arc::new(volume.clone()), options.clone()).unwrap();
        let fingerprint = directory.fingerprint(DIGEST, "").unwrap();
        let slots = grow(&directory, 2);
        put(&directory, slots[0], fingerprint, 0, 0).unwrap();
        (volume, directory, slots, fingerprint)
    };
    for stop in 1..20 {
        for seed in 0..30 {
            let (volume, directory, slots, fingerprint) = prepare();
            volume.stop_after(stop, seed);
            let stored = put(&directory, slots[1], fingerprint, 1, 1).is_ok();
            let evicted = stored && directory.tombstone(&slots[..1]).is_ok();
            let reset = evicted && directory.next_generation().is_ok();
            let volume = volume.after(Crash::Power { seed });
            let (directory, recovered) =
                DiskDirectory::open_on(Arc::new(volume), options.clone()).unwrap();
            let found = versions(&recovered);
            for block in &recovered.blocks {
                assert!(is_there(&directory, block.slot, version(block.record.seal_root)));
            }
            assert!(stored || found.contains(&0));
            assert!(!evicted || !found.contains(&0));
            assert!(!reset || found.is_empty());
            let acknowledged = stored && (!evicted || directory.generation() == 1);
            assert!(!acknowledged || found.contains(&1), "{stop} {seed}");
        }
    }
    let volume: Arc<dyn Volume> = Arc::new(MemoryVolume::new());
    assert!(volume.open("x", OpenFile::default()).is_err());
}
