//! What a drive that lost or changed bytes costs: the blocks that were there, and nothing else.

use std::fs;

use dynamo_llm::block_manager::{Tier, TransferError};

use super::tools::{SLOT, change, eventually, file, quarantined, slot_of};
use crate::rig::{FROM_DISK, Setup, hashes};

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
