//! Several drives, one of which does not answer.

use std::{sync::Arc, thread, time::Duration};

use dynamo_llm::block_manager::{
    KvBlockManager, KvBlockManagerConfig, SequenceHash,
    config::{Capacity, DriveConfig},
    io::{
        OsVolume,
        fault::{FaultVolume, Faults},
    },
};

use crate::{
    rig::{LONG, Rig, Setup, hashes},
    versions::{SHORT, eventually, get_from_disk, name, put, quarantined, store, switch, under},
};

/// Two drives, and a manager on them.
fn two(root: &std::path::Path, deadline: Duration) -> (Rig, [Arc<FaultVolume>; 2]) {
    let mut setup = under(&Setup::new(0, 0).manual(), 1);
    setup.settings.transfer.deadline_ms = deadline.as_millis() as u64;
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
    let (rig, [_, b]) = two(root.path(), SHORT);
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

#[test]
fn a_hung_drive_keeps_no_later_switch_from_reading_the_others() {
    let root = tempfile::tempdir().unwrap();
    let (rig, [a, _]) = two(root.path(), SHORT);
    let chain = hashes(3, 12);
    for version in [1, 2, 3] {
        put(&rig, version, &chain);
        assert_eq!(switch(&rig, version + 1), 0);
    }
    a.stall();
    for version in [3, 2, 1] {
        rig.manager.set_weights_version_blocking(&name(version)).unwrap_err();
        let there = |hash: &&SequenceHash| get_from_disk(&rig, version, &[**hash]) == 1;
        let on_b = chain.iter().filter(there).count();
        assert!(on_b > 0 && on_b < 12, "version {version}: {on_b} blocks");
        let new = hashes(10 + version, 4);
        assert!(store(&rig, version, &new).iter().all(Result::is_ok), "version {version}");
        rig.clear_memory();
    }
    a.resume();
    assert!(rig.manager.set_weights_version_blocking(&name(1)).is_ok());
    assert_eq!((get_from_disk(&rig, 1, &chain), quarantined(&rig)), (12, 0));
    rig.close();
}

#[test]
fn a_hung_drive_does_not_keep_the_others_until_the_deadline() {
    let root = tempfile::tempdir().unwrap();
    let (rig, [_, b]) = two(root.path(), 10 * LONG);
    let chain = hashes(4, 12);
    put(&rig, 1, &chain);
    assert_eq!(switch(&rig, 2), 0);
    b.stall();
    thread::scope(|scope| {
        let switching = scope.spawn(|| rig.manager.set_weights_version_blocking(&name(1)));
        let there = |hash: &&SequenceHash| rig.on_disk(&[**hash]) == 1;
        eventually("one drive has been read", || chain.iter().any(|hash| there(&hash)));
        let on_a = chain.iter().filter(there).count();
        assert!(on_a < 12 && !switching.is_finished(), "{on_a} blocks");
        b.resume();
        assert_eq!(switching.join().unwrap().unwrap().found, 12);
    });
    assert_eq!((get_from_disk(&rig, 1, &chain), quarantined(&rig)), (12, 0));
    rig.close();
}
