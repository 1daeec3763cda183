//! What is asked of the drive for a block, and when others see the block.

use std::sync::Arc;

use dynamo_llm::block_manager::{
    Tier,
    io::{
        FileOp,
        fault::{FaultVolume, Faults, MemoryVolume},
    },
};

use super::tools::{DATA, TABLE, eventually};
use crate::rig::{LONG, Setup, hashes};

#[test]
fn a_hit_is_one_read_and_a_store_one_write_beside_its_record() {
    let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1)));
    // One run of whole pages, and one that has to be gathered from layers.
    for (number, inner_dim) in (1_u32..).zip([1024, 40]) {
        let setup = Setup::new(0, 64).volume(drive.clone()).manual();
        let rig = setup.with(|config| config.model.inner_dim = inner_dim).open();
        let chain = hashes(1, 8);
        // The second geometry has files of its own.
        let file = |ending| format!("dynamo-{number:08x}.{ending}");
        let count = |ending, op| drive.count(&file(ending), op).unwrap();
        assert!(rig.store(&chain).iter().all(Result::is_ok));
        assert_eq!((count("data", FileOp::Write), count("table", FileOp::Write)), (8, 8));
        rig.clear_memory();
        assert_eq!(count("data", FileOp::Read), 0);
        assert_eq!(rig.get(&chain).blocks.len(), 8);
        assert_eq!(count("data", FileOp::Read), 8);
        rig.close();
    }
}

#[test]
fn a_block_that_is_still_being_written_is_not_there_yet() {
    let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1)));
    let rig = Setup::new(0, 64).volume(drive.clone()).manual().open();
    let chain = hashes(1, 2);
    // Every write stops until it is told to go on: the data, then the record.
    drive.set_faults(Faults { only: Some(FileOp::Write), hangs: 1.0, ..Faults::none(1) });
    let held = rig.fill(&chain[..1]);
    let storing = rig.manager.offload_to(&held, Tier::Disk).unwrap();
    for file in [DATA, TABLE] {
        let begun = || drive.count(file, FileOp::Write).unwrap() == 1;
        eventually("it is being written", || begun() && drive.hanging() == 1);
        assert_eq!(rig.on_disk(&chain), 0, "{file}");
        drive.resume();
    }
    assert!(storing.wait(Some(LONG)).unwrap().iter().all(Result::is_ok));
    assert_eq!(rig.on_disk(&chain), 1);
    drop(held);
    rig.clear_memory();
    assert_eq!(rig.get(&chain).blocks.len(), 1);
    rig.close();
}
