//! Several drives, one of which does not answer.

use std::sync::Arc;

use dynamo_llm::block_manager::{
    KvBlockManager, KvBlockManagerConfig, SequenceHash,
    config::{Capacity, DriveConfig},
    io::{
        OsVolume,
        fault::{FaultVolume, Faults},
    },
};

use crate::{
    rig::{Rig, Setup, hashes},
    versions::{SHORT, get_from_disk, name, put, quarantined, store, switch, under},
};

/// Two drives, and a manager on them.
fn two(root: &std::path::Path) -> (Rig, [Arc<FaultVolume>; 2]) {
    let mut setup = under(&Setup::new(0, 0).manual(), 1);
    setup.settings.transfer.deadline_ms = SHORT.as_millis() as u64;
    setup.settings.disk.capacity = Capacity::Default;
    let volumes = ["a", "b"].map(|name| {
        let dir = root.join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let drive = DriveConfig::new(dir.to_str().unwrap(), Capacity::Blocks(64));
        setup.settings.disk.drives.push(drive);
        let volume = Arc::new(OsVolume::new(&dir, true).unwrap());
        Arc::new(FaultVolume::new(volume, Faults::none(1)))
    });
    let builder = KvBlockManagerConfig::builder().settings(setup.settings);
    let builder = builder.disk_volume(volumes[0].clone()).disk_volume(volumes[1].clone());
    let manager = KvBlockManager::new_blocking(builder.build().unwrap()).unwrap();
    (Rig { manager }, volumes)
}

#[test]
fn what_lies_on_several_drives_is_found_again_and_a_hung_one_costs_its_own() {
    let root = tempfile::tempdir().unwrap();
    let (rig, [_, b]) = two(root.path());
    let chain = hashes(1, 12);
    put(&rig, 1, &chain);
    assert_eq!(switch(&rig, 2), 0);
    put(&rig, 2, &chain);
    assert_eq!((switch(&rig, 1), get_from_disk(&rig, 1, &chain)), (12, 12));

    b.stall();
    let error = rig.manager.set_weights_version_blocking(&name(2)).unwrap_err().to_string();
    let dir = root.path().join("b");
    assert!(error.contains(dir.to_str().unwrap()), "{error}");
    let there = |hash: &&SequenceHash| get_from_disk(&rig, 2, &[**hash]) == 1;
    let on_a: Vec<SequenceHash> = chain.iter().filter(there).copied().collect();
    assert!(!on_a.is_empty() && on_a.len() < 12, "{} blocks", on_a.len());
    // What is new goes to the one that answers.
    let new = hashes(2, 8);
    assert!(store(&rig, 2, &new).iter().all(Result::is_ok));
    rig.clear_memory();

    b.resume();
    let report = rig.manager.set_weights_version_blocking(&name(2)).unwrap();
    assert!(report.held.is_empty(), "nothing was forgotten a second time");
    assert_eq!((get_from_disk(&rig, 2, &chain), get_from_disk(&rig, 2, &new)), (12, 8));
    assert_eq!((switch(&rig, 1), get_from_disk(&rig, 1, &chain)), (12, 12));
    assert_eq!((switch(&rig, 2), quarantined(&rig)), (20, 0));
    rig.close();
}
