//! Owned bytes: sizes, limits, access, registrations.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};

use dynamo_llm::block_manager::storage::{
    AvailableMemory, MemoryLimit, NullAllocator, NullStorage, RegisterableStorage,
    RegistrationHandle, Storage, StorageAccess, StorageAllocator, StorageError, StorageMemset,
    StorageType, SystemAllocator, SystemStorage, available_memory, available_memory_in,
};
use proptest::prelude::*;

const MIB: usize = 1 << 20;

#[test]
fn system_memory_is_zeroed_page_aligned_and_as_long_as_asked() {
    let storage = SystemStorage::new(3 * 4096 + 17).unwrap();
    assert_eq!(storage.storage_type(), StorageType::System);
    assert_eq!(storage.size(), 3 * 4096 + 17);
    assert_eq!(storage.addr() % 4096, 0);
    // SAFETY: nobody else knows this storage.
    let bytes = unsafe { storage.slice(0, storage.size()) }.unwrap();
    assert!(bytes.iter().all(|&b| b == 0));
}

#[test]
fn a_size_of_zero_is_refused_with_a_remedy_by_every_allocator() {
    let allocators: [&dyn StorageAllocator; 2] = [&SystemAllocator, &NullAllocator];
    for allocator in allocators {
        let error = allocator.allocate(0).unwrap_err();
        assert!(matches!(error, StorageError::InvalidConfig { field: "size", .. }), "{error}");
        assert!(error.to_string().contains("0 blocks"), "{error}");
    }
}

#[test]
fn more_than_the_machine_has_is_refused_with_both_sizes() {
    for size in [usize::MAX, usize::MAX - 4095, isize::MAX as usize, 1 << 50] {
        match SystemStorage::new(size).unwrap_err() {
            StorageError::AllocationFailed { requested, available, .. } => {
                assert_eq!(requested, size as u64);
                assert!(available > 0 && available < requested);
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn address_space_is_a_limit_of_its_own() {
    let boundless = AvailableMemory { bytes: u64::MAX, limit: MemoryLimit::Unknown };
    for size in [usize::MAX, isize::MAX as usize + 1, 1 << 60] {
        let error = SystemStorage::within(size, &boundless).unwrap_err();
        let StorageError::AllocationFailed { limit, .. } = &error else { panic!("{error}") };
        assert_eq!(*limit, MemoryLimit::AddressSpace);
    }
}

#[test]
fn address_space_is_not_committed_before_it_is_touched() {
    // Each alone fits, all together are more than any machine has: nothing was committed.
    let size = usize::try_from(available_memory().bytes / 2).unwrap();
    let all: Vec<_> = (0..8).map(|_| SystemStorage::new(size).unwrap()).collect();
    assert_eq!(all.iter().map(Storage::size).sum::<usize>(), 8 * size);
}

#[test]
fn prefault_commits_everything_and_changes_nothing() {
    let mut storage = SystemStorage::new(130 * MIB + 5).unwrap();
    storage.memset(7, 70 * MIB, 9).unwrap();
    for threads in [1, 3, 1000] {
        let mut seen = vec![0];
        let committed = storage.prefault(threads, |bytes| {
            seen.push(bytes);
            ControlFlow::Continue(())
        });
        assert_eq!(committed, Ok(storage.size()));
        assert!(seen.is_sorted() && *seen.last().unwrap() >= storage.size());
    }
    // SAFETY: nobody else knows this storage.
    let bytes = unsafe { storage.slice(70 * MIB - 1, 11) }.unwrap();
    assert_eq!(bytes, [0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0]);
}

#[test]
fn prefault_stops_when_told() {
    let storage = SystemStorage::new(512 * MIB).unwrap();
    let committed = storage.prefault(1, |_| ControlFlow::Break(())).unwrap();
    assert!(committed > 0 && committed < storage.size(), "{committed}");
    let error = storage.prefault(0, |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, StorageError::InvalidConfig { field: "threads", .. }), "{error}");
}

#[test]
fn huge_pages_are_granted_or_refused_by_name() {
    let storage = SystemStorage::new(4 * MIB).unwrap();
    match storage.prefer_huge_pages() {
        Ok(()) | Err(StorageError::OperationFailed { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn null_storage_has_a_size_and_no_bytes() {
    let storage = NullAllocator.allocate(usize::MAX).unwrap();
    assert_eq!((storage.size(), storage.addr()), (usize::MAX, 0));
    assert_eq!(storage.check_range(usize::MAX - 1, 1), Ok(()));
    let refused = StorageError::NotAccessible { storage: StorageType::Null };
    assert_eq!(storage.ptr_at(0, 1), Err(refused.clone()));
    assert_eq!(NullStorage::new(8).unwrap().memset(0, 0, 8), Err(refused));
}

proptest! {
    #[test]
    fn ranges_are_inside_or_refused(offset in edges(), len in edges()) {
        let storage = SystemAllocator.allocate(8192).unwrap();
        let inside = offset as u128 + len as u128 <= 8192;
        match storage.ptr_at(offset, len) {
            Ok(at) => {
                prop_assert!(inside);
                prop_assert_eq!(at.as_ptr() as u64, storage.addr() + offset as u64);
            }
            Err(error) => {
                prop_assert!(!inside);
                prop_assert_eq!(error, StorageError::OutOfBounds { offset, len, size: 8192 });
            }
        }
    }

    #[test]
    fn memset_writes_its_range_alone(offset in 0usize..300, len in 0usize..300, value: u8) {
        let mut storage = SystemStorage::new(256).unwrap();
        let mut model = [0u8; 256];
        let written = storage.memset(value, offset, len);
        prop_assert_eq!(written.is_ok(), offset + len <= 256);
        if written.is_ok() {
            model[offset..offset + len].fill(value);
        }
        // SAFETY: nobody else knows this storage.
        prop_assert_eq!(unsafe { storage.slice(0, 256) }.unwrap(), model);
    }
}

fn edges() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..=8200, usize::MAX - 8200..=usize::MAX, any::<usize>()]
}

/// A machine made of files.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new(available_kib: u64) -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        let meminfo = format!("MemTotal: 99999999 kB\nMemAvailable:   {available_kib} kB\n");
        machine.file("proc/meminfo", &meminfo)
    }

    fn file(self, path: &str, text: &str) -> Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    #[track_caller]
    fn expect(&self, bytes: u64, limit: Option<&str>) {
        let limit = match limit {
            None => MemoryLimit::Physical,
            Some(file) => MemoryLimit::Cgroup(self.0.path().join(file)),
        };
        assert_eq!(available_memory_in(self.0.path()), AvailableMemory { bytes, limit });
    }
}

#[test]
fn without_groups_the_machine_is_the_limit() {
    Machine::new(1000).expect(1_024_000, None);
    let nothing = tempfile::tempdir().unwrap();
    let unknown = AvailableMemory { bytes: u64::MAX, limit: MemoryLimit::Unknown };
    assert_eq!(available_memory_in(nothing.path()), unknown);
}

#[test]
fn the_tightest_group_above_the_process_decides() {
    let tree = Machine::new(1 << 20)
        .file("proc/self/cgroup", "0::/pods/pod1/c1\n")
        .file("sys/fs/cgroup/pods/pod1/c1/memory.max", "max\n")
        .file("sys/fs/cgroup/pods/pod1/c1/memory.current", "5000\n")
        .file("sys/fs/cgroup/pods/pod1/memory.max", "700000\n")
        .file("sys/fs/cgroup/pods/pod1/memory.current", "300000\n")
        .file("sys/fs/cgroup/pods/memory.max", "800000\n");
    // No usage file on the outer group: all of its limit counts as left.
    tree.expect(400_000, Some("sys/fs/cgroup/pods/pod1/memory.max"));
    // Cached file pages that the kernel would drop are no usage.
    let tree = tree.file("sys/fs/cgroup/pods/pod1/memory.stat", "anon 1\ninactive_file 250000\n");
    tree.expect(650_000, Some("sys/fs/cgroup/pods/pod1/memory.max"));
    let tree = tree.file("sys/fs/cgroup/pods/pod1/c1/memory.max", "6000\n");
    tree.expect(1000, Some("sys/fs/cgroup/pods/pod1/c1/memory.max"));
    // Already over its limit.
    let tree = tree.file("sys/fs/cgroup/pods/pod1/c1/memory.current", "7000\n");
    tree.expect(0, Some("sys/fs/cgroup/pods/pod1/c1/memory.max"));
}

#[test]
fn throttling_counts_as_a_limit_and_groups_beside_do_not() {
    Machine::new(1 << 20)
        .file("proc/self/cgroup", "0::/a\n")
        .file("sys/fs/cgroup/a/memory.max", "90000\n")
        .file("sys/fs/cgroup/a/memory.high", "80000\n")
        .file("sys/fs/cgroup/b/memory.max", "1\n")
        .expect(80_000, Some("sys/fs/cgroup/a/memory.high"));
}

#[test]
fn a_container_sees_its_own_part_of_the_tree() {
    // The mount starts at the container's group, whose path is that of the host.
    let mount = "30 23 0:26 /docker/abc /sys/fs/cgroup ro,nosuid - cgroup2 cgroup2 rw\n";
    let tree = |path: &str| {
        Machine::new(1 << 20)
            .file("proc/self/cgroup", path)
            .file("proc/self/mountinfo", mount)
            .file("sys/fs/cgroup/memory.max", "5000\n")
            .file("sys/fs/cgroup/inner/memory.max", "4000\n")
    };
    tree("0::/docker/abc\n").expect(5000, Some("sys/fs/cgroup/memory.max"));
    tree("0::/docker/abc/inner\n").expect(4000, Some("sys/fs/cgroup/inner/memory.max"));
    // A process outside of what the mount shows, and one whose name only begins alike.
    tree("0::/../other\n").expect(5000, Some("sys/fs/cgroup/memory.max"));
    tree("0::/docker/abcd\n").expect(5000, Some("sys/fs/cgroup/memory.max"));
}

#[test]
fn version_1_and_mixed_hierarchies_are_read() {
    let mounts = "35 31 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                  36 31 0:33 / /sys/fs/cgroup/mem rw shared:9 - cgroup cgroup rw,memory\n\
                  41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    Machine::new(1 << 20)
        .file("proc/self/cgroup", "9:cpu:/x\n4:hugetlb,memory:/svc/a\n0::/\nnonsense\n")
        .file("proc/self/mountinfo", mounts)
        .file("sys/fs/cgroup/mem/memory.limit_in_bytes", "9223372036854771712\n")
        .file("sys/fs/cgroup/mem/svc/a/memory.limit_in_bytes", "60000\n")
        .file("sys/fs/cgroup/mem/svc/a/memory.usage_in_bytes", "50000\n")
        .file("sys/fs/cgroup/mem/svc/a/memory.stat", "total_inactive_file 20000\n")
        .expect(30_000, Some("sys/fs/cgroup/mem/svc/a/memory.limit_in_bytes"));
}

#[test]
fn a_refusal_names_sizes_and_limit() {
    let limit = MemoryLimit::Cgroup(Path::new("/sys/fs/cgroup/a/memory.max").to_owned());
    let available = AvailableMemory { bytes: 4096, limit };
    assert_eq!(available.check(4096), Ok(()));
    let message = SystemStorage::within(4097, &available).unwrap_err().to_string();
    for part in ["4097", "4096", "/sys/fs/cgroup/a/memory.max"] {
        assert!(message.contains(part), "{message}");
    }
}

#[derive(Debug)]
struct Recorded(&'static str, Arc<Mutex<Vec<&'static str>>>);

impl RegistrationHandle for Recorded {
    fn release(&self) {
        self.1.lock().unwrap().push(self.0);
    }
}

#[test]
fn registrations_are_made_once_and_released_newest_first() {
    let released = Arc::new(Mutex::new(Vec::new()));
    let storage = SystemStorage::new(4096).unwrap();
    for name in ["cuda", "nixl", "verbs", "file"] {
        storage.register(name, Arc::new(Recorded(name, released.clone()))).unwrap();
    }
    let again = storage.register("nixl", Arc::new(Recorded("second", released.clone())));
    assert_eq!(again, Err(StorageError::RegistrationKeyExists { key: "nixl".into() }));
    assert_eq!(storage.registrations().keys(), ["cuda", "nixl", "verbs", "file"]);

    storage.registrations().release("verbs").unwrap();
    let gone = StorageError::HandleNotFound { key: "verbs".into() };
    assert_eq!(storage.registrations().release("verbs"), Err(gone.clone()));
    assert_eq!(storage.registration_handle("verbs").unwrap_err(), gone);
    assert!(storage.is_registered("nixl") && !storage.is_registered("verbs"));

    // Holding a handle does not put off its release.
    let _held = storage.registration_handle("nixl").unwrap();
    drop(storage);
    assert_eq!(*released.lock().unwrap(), ["verbs", "file", "nixl", "cuda"]);
}
