//! One step after the other.

use std::{collections::BTreeSet, fs, sync::Arc};

use dynamo_llm::block_manager::{
    KvBlockManager, KvBlockManagerConfig, ManagerError, OnboardOptions, SequenceHash, Tier,
    TransferError,
    config::{Capacity, Source},
    io::fault::MemoryVolume,
    io::{
        OsVolume,
        fault::{FaultVolume, Faults},
    },
    storage::disk::{inspect, walk},
};

use crate::{
    rig::{LONG, Rig, Setup, hashes},
    versions::{
        compute, eventually, get, get_from_disk, name, put, quarantined, store, switch, under,
    },
};

#[path = "../rig/log.rs"]
mod log;

#[test]
fn old_blocks_are_hidden_at_once_in_every_tier_and_found_again_when_switched_back() {
    let dir = tempfile::tempdir().unwrap();
    let setup = under(&Setup::new(16, 64).dir(dir.path()), 1);
    // Also for what is on its way down and nobody wants any more.
    let setup = setup.with(|config| config.device.capacity = Capacity::Blocks(64));
    let (chain, other) = (hashes(1, 6), hashes(2, 4));
    let rig = setup.open();
    let held = compute(&rig, 1, &chain);
    rig.manager.flush_blocking(LONG).unwrap();
    let generation = inspect(dir.path()).unwrap().generation;

    let report = rig.manager.set_weights_version_blocking(&name(2)).unwrap();
    assert_eq!((report.held[&Tier::Device], report.held[&Tier::Host], report.found), (6, 0, 0));
    assert!(rig.manager.lookup(&chain).unwrap().is_empty());
    assert!(chain.iter().all(|hash| rig.manager.lookup(&[*hash]).unwrap().is_empty()));
    drop(held);
    // The same names and other bytes.
    for chain in [&chain, &other] {
        drop(compute(&rig, 2, chain));
    }
    rig.manager.flush_blocking(LONG).unwrap();
    assert_eq!(get_from_disk(&rig, 2, &chain), 6);

    assert_eq!(switch(&rig, 1), 6);
    assert_eq!(rig.manager.lookup(&chain).unwrap().count(Tier::Disk), 6);
    assert_eq!((get(&rig, 1, &chain), get(&rig, 1, &other)), (6, 0));
    assert_eq!(switch(&rig, 2), 10);
    assert_eq!((get(&rig, 2, &chain), get(&rig, 2, &other)), (6, 4));
    rig.close();

    // And so it is for whoever comes later, under whichever version.
    let inspection = inspect(dir.path()).unwrap();
    assert_eq!(inspection.generation, generation, "nothing was reset");
    let label = |version| inspection.fingerprints.iter().find(|f| f.label.contains(&name(version)));
    assert_eq!((label(1).unwrap().blocks, label(2).unwrap().blocks), (6, 10));
    let rig = under(&setup, 2).open();
    assert_eq!((get(&rig, 2, &chain), get(&rig, 2, &other)), (6, 4));
    assert_eq!(switch(&rig, 1), 6);
    assert_eq!((get(&rig, 1, &chain), get(&rig, 1, &other)), (6, 0));
    assert_eq!(quarantined(&rig), 0);
    rig.close();
}

#[test]
fn the_version_in_force_is_no_switch_and_an_empty_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let rig = under(&Setup::new(16, 64).dir(dir.path()), 1).open();
    let chain = hashes(1, 6);
    drop(compute(&rig, 1, &chain));
    let report = rig.manager.set_weights_version_blocking(&name(1)).unwrap();
    assert!(report.held.is_empty() && report.found == 0);
    assert_eq!(rig.manager.lookup(&chain).unwrap().count(Tier::Device), 6);
    for empty in ["", " "] {
        let refused = rig.manager.set_weights_version_blocking(empty).unwrap_err();
        assert!(matches!(refused, ManagerError::Config(_)));
        assert!(refused.to_string().contains("version"), "{refused}");
    }
    assert_eq!(rig.manager.settings().model.revision, Some(name(1)));
    switch(&rig, 2);
    let settings = rig.manager.settings();
    assert_eq!(settings.model.revision, Some(name(2)));
    assert_eq!(settings.source("model.revision"), Source::Argument);
    let kept = rig.manager.clone();
    rig.close();
    let refused = kept.set_weights_version_blocking(&name(3)).unwrap_err();
    assert!(matches!(refused, ManagerError::Shutdown));
}

#[test]
fn tiers_in_memory_switch_without_a_disk() {
    let mut setup = Setup::new(16, 1);
    setup.settings.disk.capacity = Capacity::Default;
    let rig = setup.open();
    let chain = hashes(1, 6);
    drop(compute(&rig, 0, &chain));
    rig.manager.flush_blocking(LONG).unwrap();
    assert_eq!(rig.manager.set_weights_version_blocking("a").unwrap().found, 0);
    assert!(rig.manager.lookup(&chain).unwrap().is_empty());
    drop(compute(&rig, 1, &chain));
    rig.manager.flush_blocking(LONG).unwrap();
    rig.clear_device();
    assert_eq!(rig.manager.lookup(&chain).unwrap().count(Tier::Host), 6);
    assert_eq!(get(&rig, 1, &chain), 6);
    rig.close();
}

#[test]
fn blocks_of_other_versions_make_room_before_any_of_the_present_one() {
    let dir = tempfile::tempdir().unwrap();
    let rig = under(&Setup::new(0, 12).dir(dir.path()).manual(), 1).open();
    let (old, young) = (hashes(1, 4), hashes(2, 4));
    put(&rig, 1, &old);
    put(&rig, 1, &young);
    switch(&rig, 2);
    for seed in 3..5 {
        put(&rig, 2, &hashes(seed, 4));
    }
    // Room for 12: the oldest four of the other version are gone, and nothing else.
    switch(&rig, 1);
    assert_eq!((get(&rig, 1, &old), get(&rig, 1, &young)), (0, 4));
    assert_eq!(switch(&rig, 2), 8);
    put(&rig, 2, &hashes(5, 4));
    for seed in 3..6 {
        assert_eq!(get_from_disk(&rig, 2, &hashes(seed, 4)), 4, "{seed}");
    }
    assert_eq!(rig.manager.disk().unwrap().status().evictions, 0);
    assert_eq!(switch(&rig, 1), 0);
    rig.close();
}

#[test]
fn a_reset_is_for_every_version_and_lasts() {
    let dir = tempfile::tempdir().unwrap();
    let rig = under(&Setup::new(0, 64).dir(dir.path()).manual(), 1).open();
    let chain = hashes(1, 4);
    put(&rig, 1, &chain);
    switch(&rig, 2);
    put(&rig, 2, &chain);
    rig.manager.reset_blocking().unwrap();
    assert_eq!((switch(&rig, 1), switch(&rig, 2)), (0, 0));
    // Stores go on whatever came in which order.
    put(&rig, 2, &chain);
    rig.manager.disk().unwrap().reset_blocking().unwrap();
    switch(&rig, 1);
    put(&rig, 1, &chain);
    assert_eq!(switch(&rig, 2), 0);
    assert_eq!(switch(&rig, 1), 4);
    assert_eq!(get(&rig, 1, &chain), 4);
    rig.close();
}

#[test]
fn a_match_of_before_is_stale_and_its_blocks_are_none_the_worse() {
    let dir = tempfile::tempdir().unwrap();
    let rig = under(&Setup::new(0, 16).dir(dir.path()).manual(), 1).open();
    let (chain, other) = (hashes(1, 6), hashes(2, 8));
    put(&rig, 1, &chain);
    let found = rig.manager.lookup(&chain).unwrap();
    let kept = found.clone();
    assert_eq!(found.count(Tier::Disk), 6);
    switch(&rig, 2);
    let old = rig.manager.onboard_blocking(found, OnboardOptions::default()).unwrap();
    let stale = |result: &_| matches!(result, Err(TransferError::Stale { .. }));
    assert!(old.blocks.is_empty() && old.results.iter().all(stale), "{:?}", old.results);
    put(&rig, 2, &other);
    // Found again though somebody still has the handles of then.
    assert_eq!(switch(&rig, 1), 6);
    assert_eq!(get(&rig, 1, &chain), 6);
    drop(kept);
    assert_eq!((switch(&rig, 2), get(&rig, 2, &other), quarantined(&rig)), (8, 8, 0));
    rig.close();
}

/// The slots of the data file that have a block, by the directory's own account.
fn in_use(dir: &std::path::Path) -> BTreeSet<u32> {
    let mut slots = BTreeSet::new();
    walk(dir, |slot, _| {
        slots.insert(slot.block.slot.slot);
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    slots
}

#[test]
fn a_slot_that_proved_bad_is_not_taken_for_room() {
    let dir = tempfile::tempdir().unwrap();
    let drive = OsVolume::new(dir.path(), true).unwrap();
    let drive = Arc::new(FaultVolume::new(Arc::new(drive), Faults::none(1)));
    let rig = under(&Setup::new(0, 8).volume(drive.clone()).manual(), 1).open();
    let one = hashes(1, 1);
    put(&rig, 1, &one);
    let bad = *in_use(dir.path()).first().unwrap();
    let files = fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name());
    let data = files.into_iter().find(|name| name.to_string_lossy().ends_with(".data")).unwrap();
    let start = u64::from(bad) * 8192;
    drive.damage(data.to_str().unwrap(), start..start + 4096, false).unwrap();
    assert_eq!(get(&rig, 1, &one), 0);
    eventually("it has been tested", || quarantined(&rig) == 1);
    for version in [2, 1, 2] {
        switch(&rig, version);
        for seed in 2..6 {
            let chain: Vec<SequenceHash> = hashes(seed + 10 * version, 4);
            let stored = store(&rig, version, &chain).iter().filter(|r| r.is_ok()).count();
            assert!(stored > 0);
            rig.clear_memory();
            assert!(get_from_disk(&rig, version, &chain) <= stored);
        }
        eventually("it is not being tested", || quarantined(&rig) == 1);
        assert!(!in_use(dir.path()).contains(&bad), "version {version}");
    }
    rig.close();
}

#[test]
fn a_follower_of_the_events_knows_what_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let follower: Arc<log::Log> = Arc::default();
    let setup = under(&Setup::new(0, 64).dir(dir.path()).manual(), 1);
    let builder = KvBlockManagerConfig::builder().settings(setup.settings);
    let config = builder.event_manager(follower.clone()).build().unwrap();
    let rig = Rig { manager: KvBlockManager::new_blocking(config).unwrap() };
    let chain = hashes(1, 6);
    put(&rig, 1, &chain);
    let all: BTreeSet<SequenceHash> = chain.iter().copied().collect();
    assert_eq!(follower.resident(Tier::Disk), all);
    switch(&rig, 2);
    assert_eq!(follower.resident(Tier::Disk), BTreeSet::new());
    assert_eq!(follower.count("cleared"), 2, "each tier once");
    switch(&rig, 1);
    assert_eq!(follower.resident(Tier::Disk), all);
    rig.close();
}

#[test]
fn more_versions_than_a_directory_tells_apart_cost_the_blocks_of_the_oldest() {
    let drive = MemoryVolume::new();
    let setup = Setup::new(0, 1024).volume(Arc::new(drive)).manual();
    let rig = under(&setup, 0).open();
    let chain = hashes(1, 2);
    for version in 0..300 {
        switch(&rig, version);
        put(&rig, version, &chain);
    }
    assert_eq!(switch(&rig, 0), 0);
    for version in [299, 200, 100] {
        assert_eq!((switch(&rig, version), get_from_disk(&rig, version, &chain)), (2, 2));
    }
    rig.close();
    // Whoever opens it under yet another one finds a place, too.
    let rig = under(&setup, 1000).open();
    assert!(rig.manager.lookup(&chain).unwrap().is_empty());
    put(&rig, 1000, &chain);
    assert_eq!((switch(&rig, 299), get_from_disk(&rig, 299, &chain)), (2, 2));
    assert_eq!((switch(&rig, 1000), get_from_disk(&rig, 1000, &chain)), (2, 2));
    assert_eq!(quarantined(&rig), 0);
    rig.close();
}
