//! What a drive that lost or changed bytes costs: the blocks that were there, and nothing else.

use std::{fs, os::unix::fs::FileExt, thread};

use dynamo_llm::block_manager::{EvictionMode, Tier, TransferError};

use super::tools::{SLOT, change, eventually, file, quarantined, slot_of};
use crate::rig::{FROM_DISK, Rig, Setup, hashes};

#[test]
fn a_flipped_bit_is_a_miss_never_served_and_not_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(0, 16).dir(dir.path());
    let chain = hashes(1, 6);
    let rig = setup.open();
    rig.put(&chain);
    rig.close();
    let walked = slot_of(dir.path(), 2);
    change(&file(dir.path(), ".data"), walked * SLOT + 100);

    let rig = setup.open();
    assert_eq!(rig.manager.lookup(&chain).unwrap().len(), 6, "a candidate until it was read");
    let arrived = rig.get(&chain);
    assert_eq!(arrived.blocks.len(), 2);
    assert!(matches!(
        arrived.results[2],
        Err(TransferError::VerificationFailed { tier: Tier::Disk, .. })
    ));
    assert_eq!(rig.edge(FROM_DISK).failures["verification"], 1);
    // The verdict is withdrawn: nobody is sent there again.
    drop(arrived);
    rig.clear_memory();
    assert_eq!(rig.manager.lookup(&chain).unwrap().len(), 2);
    // The slot itself is sound.
    eventually("the slot is in use again", || quarantined(&rig) == 0);
    rig.close();
    let rig = setup.open();
    assert_eq!(rig.manager.lookup(&chain).unwrap().len(), 2);
    rig.close();
}

#[test]
fn a_data_file_cut_short_costs_the_blocks_that_were_there() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(0, 16).dir(dir.path());
    let chain = hashes(1, 6);
    let rig = setup.open();
    rig.put(&chain);
    rig.clear_memory();
    let cut = fs::OpenOptions::new().write(true).open(file(dir.path(), ".data")).unwrap();
    cut.set_len(3 * SLOT).unwrap();
    let arrived = rig.get(&chain).blocks.len();
    assert!(arrived < 6);
    rig.clear_memory();
    assert!(rig.manager.lookup(&chain).unwrap().len() < 6, "withdrawn");
    rig.close();
    let rig = setup.open();
    assert!(rig.get(&chain).blocks.len() <= arrived);
    rig.put(&hashes(2, 6));
    rig.clear_memory();
    assert_eq!(rig.get(&hashes(2, 6)).blocks.len(), 6);
    rig.close();
}

#[test]
fn files_removed_behind_its_back_cost_no_more_than_what_was_in_them() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(0, 16).dir(dir.path());
    let chain = hashes(1, 6);
    let rig = setup.open();
    rig.put(&chain);
    rig.clear_memory();
    fs::remove_dir_all(dir.path()).unwrap();
    assert_eq!(rig.get(&chain).blocks.len(), 6);
    rig.put(&hashes(2, 6));
    rig.close();
    let rig = setup.open();
    assert!(rig.manager.lookup(&chain).unwrap().is_empty());
    rig.close();
}

#[test]
fn torn_records_and_a_damaged_superblock_are_no_blocks_and_no_obstacle() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(0, 16).dir(dir.path());
    let chain = hashes(1, 6);
    let rig = setup.open();
    rig.put(&chain);
    rig.close();
    let torn = slot_of(dir.path(), 4);
    change(&file(dir.path(), ".table"), torn * 256 + 60);
    // One copy of two.
    change(&file(dir.path(), ".super"), 40);
    let rig = setup.open();
    assert_eq!(rig.get(&chain).blocks.len(), 4);
    rig.close();
    let len = fs::metadata(file(dir.path(), ".super")).unwrap().len();
    for offset in (0..len).step_by(64) {
        change(&file(dir.path(), ".super"), offset);
    }
    let rig = setup.open();
    assert!(rig.manager.lookup(&chain).unwrap().is_empty());
    rig.put(&chain);
    rig.close();
    assert_eq!(setup.open().get(&chain).blocks.len(), 6);
}

#[test]
fn rotten_blocks_are_misses_counted_and_gone_and_all_others_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(0, 16).dir(dir.path());
    let chain = hashes(1, 10);
    let rig = setup.open();
    rig.put(&chain);
    rig.close();
    let data = file(dir.path(), ".data");
    // A byte in one, a page of zeros in another.
    change(&data, slot_of(dir.path(), 4) * SLOT + 900);
    let zeros = fs::File::options().write(true).open(&data).unwrap();
    zeros.write_all_at(&[0; 4096], slot_of(dir.path(), 7) * SLOT).unwrap();

    let rig = setup.open();
    let served = |rig: &Rig| -> Vec<bool> {
        chain.iter().map(|&hash| rig.get(&[hash]).blocks.len() == 1).collect()
    };
    let expected: Vec<bool> = (0..10).map(|at| at != 4 && at != 7).collect();
    assert_eq!(served(&rig), expected);
    assert_eq!(rig.edge(FROM_DISK).failures["verification"], 2);
    rig.close();
    let rig = setup.open();
    assert_eq!(rig.manager.disk().unwrap().status().inactive, 8);
    assert_eq!(served(&rig), expected);
    assert_eq!(rig.edge(FROM_DISK).failures["verification"], 0, "they are gone");
    rig.close();
}

#[test]
fn a_file_that_is_too_short_ends_the_prefix_once_and_the_next_lookup_knows() {
    let dir = tempfile::tempdir().unwrap();
    // One store at a time: slots in the order of the chain.
    let setup = Setup::new(0, 16).dir(dir.path()).with(|config| config.disk.io_threads = 1);
    let chain = hashes(1, 5);
    let rig = setup.open();
    rig.put(&chain);
    rig.clear_memory();
    let cut = fs::File::options().write(true).open(file(dir.path(), ".data")).unwrap();
    cut.set_len(2 * SLOT).unwrap();
    assert_eq!(rig.manager.lookup(&chain).unwrap().len(), 5);
    let arrived = rig.get(&chain);
    assert_eq!(arrived.blocks.len(), 2);
    assert!(matches!(arrived.results[2], Err(TransferError::Disk(_))), "{:?}", arrived.results);
    drop(arrived);
    for _ in 0..3 {
        rig.clear_memory();
        assert_eq!(rig.manager.lookup(&chain).unwrap().len(), 2, "nobody is sent there again");
        assert_eq!(rig.get(&chain).blocks.len(), 2);
    }
    rig.close();
}

#[test]
fn blocks_lost_under_two_threads_that_load_and_evict_are_misses_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(0, 64).dir(dir.path());
    let chains = [hashes(1, 10), hashes(2, 10)];
    let rig = setup.open();
    for chain in &chains {
        rig.put(chain);
    }
    rig.close();
    let lost: Vec<u64> = (0..20).step_by(4).map(|at| slot_of(dir.path(), at)).collect();
    let rig = setup.open();
    let data = fs::File::options().write(true).open(file(dir.path(), ".data")).unwrap();
    for slot in lost {
        data.write_all_at(&[0; SLOT as usize], slot * SLOT).unwrap();
    }
    thread::scope(|scope| {
        for chain in &chains {
            let rig = &rig;
            scope.spawn(move || {
                for hash in chain.iter().cycle().take(60) {
                    // Compares every byte.
                    drop(rig.get(&[*hash]));
                    rig.clear_memory();
                }
                let disk = rig.manager.disk().unwrap();
                disk.trigger_eviction_blocking(EvictionMode::Aggressive).unwrap();
            });
        }
    });
    assert_eq!(rig.edge(FROM_DISK).failures["verification"], 5);
    let disk = rig.manager.disk().unwrap();
    eventually("everything is free", || {
        disk.trigger_eviction_blocking(EvictionMode::Aggressive).unwrap();
        disk.status().free == 64
    });
    rig.put(&chains[0]);
    rig.clear_memory();
    assert_eq!(rig.get(&chains[0]).blocks.len(), 10);
    rig.close();
}
