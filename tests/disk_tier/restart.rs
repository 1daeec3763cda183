//! What is there again after a restart, and what is not.

use std::{fs, os::unix::fs::MetadataExt, sync::Arc};

use dynamo_llm::block_manager::{
    KvBlockManager, KvBlockManagerConfig, ManagerError, Tier,
    config::{Capacity, Config, DiskDurability, LayoutKind},
    io::fault::{Crash, MemoryVolume},
    storage::disk::inspect,
};

use crate::rig::{FROM_DISK, LONG, Rig, Setup, TO_DISK, hashes};

#[test]
fn blocks_go_down_by_themselves_and_are_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(32, 64).dir(dir.path());
    let chain = hashes(1, 8);
    let rig = setup.open();
    rig.put(&chain);
    assert_eq!(rig.on_disk(&chain), 8);
    assert_eq!(rig.edge(TO_DISK).blocks, 8);
    rig.close();

    let rig = setup.open();
    assert_eq!(rig.manager.lookup(&chain).unwrap().count(Tier::Disk), 8);
    let arrived = rig.get(&chain);
    assert_eq!(arrived.blocks.len(), 8);
    let figures = rig.edge(FROM_DISK);
    assert_eq!((figures.blocks, figures.queue_depth), (8, 0));
    // What came from disk is nearer the next time.
    drop(arrived);
    rig.manager.flush_blocking(LONG).unwrap();
    rig.clear_device();
    assert_eq!(rig.manager.lookup(&chain).unwrap().count(Tier::Host), 8);
    rig.close();
}

#[test]
fn without_a_host_tier_blocks_go_straight_to_disk_and_back() {
    for layout in LayoutKind::ALL {
        let dir = tempfile::tempdir().unwrap();
        let setup = Setup::new(0, 64).dir(dir.path()).with(|c| c.device.layout = *layout);
        let chain = hashes(1, 8);
        let rig = setup.open();
        rig.put(&chain);
        rig.close();
        let rig = setup.open();
        assert_eq!(rig.get(&chain).blocks.len(), 8, "{layout}");
        rig.close();
    }
}

#[test]
fn aligned_blocks_are_read_and_written_where_they_lie() {
    // Whole pages, paged on the device: no staging on either way.
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(0, 16).dir(dir.path()).with(|config| {
        config.model.inner_dim = 1024;
        config.device.layout = LayoutKind::Paged;
        config.disk.durability = DiskDurability::Power;
    });
    let chain = hashes(1, 8);
    let rig = setup.open();
    rig.put(&chain);
    rig.clear_memory();
    assert_eq!(rig.get(&chain).blocks.len(), 8);
    rig.close();
    let rig = setup.open();
    assert_eq!(rig.get(&chain).blocks.len(), 8);
    rig.close();
}

#[test]
fn a_block_that_is_reported_stored_needs_no_shutdown_to_survive() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(32, 64).dir(dir.path()).manual();
    let chain = hashes(1, 8);
    let rig = setup.open();
    assert!(rig.store(&chain).iter().all(Result::is_ok));
    drop(rig);
    let rig = setup.open();
    assert_eq!(rig.get(&chain).blocks.len(), 8);
    rig.close();
}

#[test]
fn nothing_of_before_a_reset_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(32, 64).dir(dir.path());
    let (before, after) = (hashes(1, 8), hashes(2, 4));
    let rig = setup.open();
    rig.put(&before);
    rig.manager.reset_blocking().unwrap();
    assert!(rig.manager.lookup(&before).unwrap().is_empty());
    rig.put(&after);
    rig.close();
    let rig = setup.open();
    assert!(rig.manager.lookup(&before).unwrap().is_empty());
    assert_eq!(rig.get(&after).blocks.len(), 4);
    // A reset of the one tier lasts too, once nothing is on its way there.
    rig.manager.flush_blocking(LONG).unwrap();
    rig.manager.disk().unwrap().reset_blocking().unwrap();
    rig.close();
    let rig = setup.open();
    assert!(rig.manager.lookup(&after).unwrap().is_empty());
    rig.close();
}

#[test]
fn a_full_disk_tier_drops_what_was_used_longest_ago_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(0, 12).dir(dir.path());
    let chains: Vec<_> = (1..=3).map(|seed| hashes(seed, 4)).collect();
    let rig = setup.open();
    for chain in &chains {
        rig.put(chain);
    }
    // The oldest is used again, and that outlives the owner.
    rig.clear_memory();
    assert_eq!(rig.get(&chains[0]).blocks.len(), 4);
    rig.close();

    let rig = setup.open();
    let newest = hashes(9, 4);
    rig.put(&newest);
    assert_eq!(rig.manager.disk().unwrap().status().evictions, 4);
    let left: Vec<usize> = chains.iter().map(|chain| rig.on_disk(chain)).collect();
    assert_eq!((left, rig.on_disk(&newest)), (vec![4, 0, 4], 4));
    rig.close();
    assert_eq!(inspect(dir.path()).unwrap().blocks, 12);
}

#[test]
fn the_limit_covers_everything_in_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let limit = 256 << 10;
    let setup = Setup::new(0, 1).dir(dir.path()).with(|c| c.disk.capacity = Capacity::Bytes(limit));
    let rig = setup.open();
    for seed in 1..20 {
        rig.put(&hashes(seed, 8));
    }
    let used = || -> u64 {
        let files = fs::read_dir(dir.path()).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
    };
    assert!(used() <= limit, "{} of {limit}", used());
    assert!(rig.manager.disk().unwrap().status().evictions > 0);
    rig.close();
    assert!(used() <= limit, "{} of {limit}", used());
    // A lower one is kept to as well: what was used last stays.
    let newest = hashes(19, 8);
    let rig = setup.with(|c| c.disk.capacity = Capacity::Blocks(8)).open();
    assert_eq!(rig.get(&newest).blocks.len(), 8);
    rig.close();
}

#[test]
fn a_lower_limit_gives_room_back_and_keeps_what_was_used_last() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = |bytes| move |c: &mut Config| c.disk.capacity = Capacity::Bytes(bytes);
    let setup = Setup::new(0, 1).dir(dir.path());
    let rig = setup.clone().with(bytes(1 << 20)).open();
    let chains: Vec<_> = (1..10).map(|seed| hashes(seed, 8)).collect();
    for chain in &chains {
        rig.put(chain);
    }
    rig.clear_memory();
    assert_eq!(rig.get(&chains[2]).blocks.len(), 8);
    rig.close();
    let taken = || -> u64 {
        let files = fs::read_dir(dir.path()).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum()
    };
    for limit in [512 << 10, 384 << 10] {
        let rig = setup.clone().with(bytes(limit)).open();
        // The records of what was given up stay, and a hole may cost the file system a page.
        let limit = limit + (32 << 10);
        let used = rig.manager.status().drives[0].used_bytes;
        assert!(used <= limit && taken() <= limit, "{used}, {} of {limit}", taken());
        for chain in [&chains[2], &chains[8]] {
            assert_eq!(rig.get(chain).blocks.len(), 8);
            rig.clear_memory();
        }
        // And it goes on.
        let new: Vec<_> = (20..30).map(|seed| hashes(seed, 8)).collect();
        for chain in &new {
            rig.put(chain);
        }
        rig.clear_memory();
        assert_eq!(rig.get(&new[9]).blocks.len(), 8);
        rig.clear_memory();
        assert!(taken() <= limit, "{} of {limit}", taken());
        rig.put(&chains[2]);
        rig.put(&chains[8]);
        rig.clear_memory();
        rig.close();
    }
}

#[test]
fn what_is_found_again_counts_against_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(0, 100).dir(dir.path());
    let chains: Vec<_> = (0..10).map(|seed| hashes(seed, 10)).collect();
    let used = |rig: &Rig| rig.manager.disk().unwrap().blocks().place().disk().unwrap().used();
    let rig = setup.open();
    for chain in &chains {
        rig.put(chain);
    }
    let before = used(&rig);
    rig.close();
    let rig = setup.open();
    assert_eq!((used(&rig), rig.manager.disk().unwrap().status().inactive), (before, 100));
    for chain in &chains {
        assert_eq!(rig.get(chain).blocks.len(), 10);
        rig.clear_memory();
    }
    rig.put(&hashes(20, 10));
    assert_eq!(used(&rig), before);
    assert_eq!(rig.manager.disk().unwrap().status().evictions, 10);
    rig.close();
}

#[test]
fn a_directory_that_is_not_to_be_reused_starts_empty_and_keeps_foreign_files() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(0, 64).dir(dir.path());
    let chain = hashes(1, 8);
    let rig = setup.open();
    rig.put(&chain);
    rig.close();
    fs::write(dir.path().join("notes.txt"), "not ours").unwrap();
    let rig = setup.clone().with(|config| config.disk.reuse = false).open();
    assert!(rig.manager.lookup(&chain).unwrap().is_empty());
    rig.close();
    assert!(dir.path().join("notes.txt").exists());
    assert_eq!(inspect(dir.path()).unwrap().blocks, 0);
}

#[test]
fn a_directory_has_one_owner_and_the_other_learns_who() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(0, 8).dir(dir.path());
    let rig = setup.open();
    let config = KvBlockManagerConfig::from_settings(setup.settings.clone()).unwrap();
    let refused = KvBlockManager::new_blocking(config).unwrap_err();
    assert!(matches!(refused, ManagerError::Disk { .. }));
    let message = refused.to_string();
    assert!(message.contains(&std::process::id().to_string()), "{message}");
    // A shut down manager lets go, though somebody still has it.
    let kept = rig.manager.clone();
    rig.close();
    setup.open().close();
    drop(kept);
}

#[test]
fn what_was_found_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(0, 8).dir(dir.path());
    let rig = setup.open();
    rig.put(&hashes(1, 4));
    rig.close();
    fs::write(dir.path().join("dynamo-0000beef.data"), "left over").unwrap();
    fs::write(dir.path().join("notes.txt"), "not ours").unwrap();
    let rig = setup.open();
    let said: Vec<String> = rig.manager.findings().iter().map(ToString::to_string).collect();
    let said = said.join("\n");
    assert!(said.contains("4 blocks found") && said.contains("1 old files removed"), "{said}");
    assert!(dir.path().join("notes.txt").exists());
    assert!(!dir.path().join("dynamo-0000beef.data").exists());
    rig.close();
}

#[test]
fn with_durability_against_power_loss_acknowledged_blocks_survive_it() {
    for durability in DiskDurability::ALL {
        let drive = MemoryVolume::new();
        let setup = Setup::new(0, 12).manual().with(|c| c.disk.durability = *durability);
        let rig = setup.clone().volume(Arc::new(drive.clone())).open();
        // More than fits, so that slots are used again.
        let chains: Vec<_> = (1..=5).map(|seed| hashes(seed, 4)).collect();
        for chain in &chains {
            assert!(rig.store(chain).iter().all(Result::is_ok));
            rig.clear_memory();
        }
        for seed in 0..16 {
            let after = Arc::new(drive.after(Crash::Power { seed }));
            let rig = setup.clone().volume(after).open();
            for chain in &chains[2..] {
                // Whatever is there is right: `get` compares every byte.
                let there = rig.get(chain).blocks.len();
                assert!(*durability == DiskDurability::Process || there == 4, "{seed}: {there}");
                rig.clear_memory();
            }
        }
    }
}

#[test]
fn killed_in_the_course_of_any_write_no_acknowledged_block_is_lost() {
    for operations in 1..120 {
        let drive = MemoryVolume::new();
        let setup = Setup::new(0, 12).manual();
        let rig = setup.clone().volume(Arc::new(drive.clone())).open();
        let first = hashes(100, 4);
        assert!(rig.store(&first).iter().all(Result::is_ok));
        drive.stop_after(operations, operations);
        let mut acknowledged = vec![];
        for seed in 1..=6 {
            let chain = hashes(seed, 4);
            let results = rig.store(&chain);
            let prefix = results.iter().take_while(|result| result.is_ok()).count();
            acknowledged.push((chain, prefix));
            rig.clear_memory();
            if prefix < 4 {
                break;
            }
        }
        drop(rig);
        let rig = setup.volume(Arc::new(drive.after(Crash::Kill))).open();
        // What was stored last fits for certain, beside what was under way.
        for (chain, prefix) in acknowledged.iter().rev().take(2) {
            assert!(rig.get(chain).blocks.len() >= *prefix, "after {operations} operations");
            rig.clear_memory();
        }
        assert_eq!(rig.edge(FROM_DISK).failures["verification"], 0);
    }
}
