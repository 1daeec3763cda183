//! Looking at a directory without owning it, and storage in files.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use dynamo_llm::block_manager::io::{AlignedBuffer, IoError, IoMemory, write_full};
use dynamo_llm::block_manager::storage::disk::{
    DiskDirectory, DiskError, SlotMemory, inspect, walk,
};
use dynamo_llm::block_manager::storage::{
    DiskAllocator, DiskStorage, Storage, StorageAccess, StorageAllocator, StorageError,
    StorageType, SystemStorage,
};

use crate::rig::*;

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
