//! Whatever the file system can do: the same blocks, and it is said how the drive is used.

use std::{path::Path, sync::Arc};

use dynamo_llm::block_manager::io::{
    OsVolume,
    fault::{FaultVolume, Faults, MemoryVolume},
};

use super::tools::quarantined;
use crate::rig::{LONG, Rig, Setup, hashes};

fn said(rig: &Rig) -> String {
    let said: Vec<String> = rig.manager.findings().iter().map(ToString::to_string).collect();
    said.join("\n")
}

#[test]
fn blocks_stored_with_direct_io_are_read_through_the_page_cache_and_the_other_way_round() {
    let temporary = tempfile::tempdir().unwrap();
    // A tmpfs, which many kernels refuse direct I/O on.
    let shared = tempfile::tempdir_in("/dev/shm").ok();
    for parent in [Some(&temporary), shared.as_ref()].into_iter().flatten() {
        for stored_direct in [true, false] {
            let dir = parent.path().join(format!("{stored_direct}"));
            let setup =
                |direct| Setup::new(0, 64).dir(&dir).with(|config| config.disk.direct = direct);
            let chain = hashes(1, 8);
            let rig = setup(stored_direct).open();
            // The first load works, whatever is in force.
            rig.put(&chain);
            rig.clear_memory();
            assert_eq!(rig.get(&chain).blocks.len(), 8);
            rig.close();
            let rig = setup(!stored_direct).open();
            let said = said(&rig);
            assert!(said.contains("direct I/O in units of") || said.contains("buffered I/O:"));
            assert!(stored_direct == said.contains("buffered I/O:") || !stored_direct, "{said}");
            assert_eq!(rig.get(&chain).blocks.len(), 8);
            rig.close();
        }
    }
}

/// A real directory that reserves no room and punches no holes.
fn plain(dir: &Path) -> Setup {
    let volume = FaultVolume::new(Arc::new(OsVolume::new(dir, true).unwrap()), Faults::none(1));
    volume.set_abilities(false, false);
    Setup::new(0, 64).volume(Arc::new(volume)).manual()
}

#[test]
fn a_file_system_that_reserves_no_room_is_used_and_that_is_said() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let rig = plain(dir.path()).open();
        let said = said(&rig);
        assert!(said.contains("room cannot be reserved"), "{said}");
        assert!(rig.store(&hashes(1, 8)).iter().all(Result::is_ok));
        rig.clear_memory();
        assert_eq!(rig.get(&hashes(1, 8)).blocks.len(), 8);
        rig.close();
    }
    // On a file system that can it is not said.
    let rig = Setup::new(0, 64).dir(&dir.path().join("other")).open();
    assert!(!said(&rig).contains("room cannot be reserved"));
    rig.close();
}

#[test]
fn room_that_could_not_be_reserved_and_is_not_there_costs_the_blocks_that_needed_it() {
    let drive = MemoryVolume::new();
    drive.set_abilities(false, false);
    let rig = Setup::new(0, 64).volume(Arc::new(drive.clone())).manual().open();
    drive.set_capacity(drive.used() + 12 * 8192);
    let mut stored = vec![];
    for seed in 1..8 {
        let chain = hashes(seed, 4);
        let results = rig.store(&chain);
        stored.extend(chain.into_iter().zip(results).filter(|(_, result)| result.is_ok()));
        rig.clear_memory();
    }
    assert!(stored.len() < 28 && stored.len() >= 8);
    let there = stored.iter().filter(|(hash, _)| rig.get(&[*hash]).blocks.len() == 1).count();
    assert_eq!(there, stored.len(), "nothing was evicted for what found no room");
    assert!(quarantined(&rig) > 0);
    rig.manager.shutdown_blocking(LONG);
}
