//! What a drive without room costs, and that the room of other tiers is none of its business.

use std::sync::Arc;

use dynamo_llm::block_manager::io::fault::MemoryVolume;

use super::tools::SLOT;
use crate::rig::{LONG, Setup, hashes};

#[test]
fn a_full_drive_costs_the_blocks_that_do_not_fit() {
    let drive = MemoryVolume::new();
    let setup = Setup::new(32, 64).volume(Arc::new(drive.clone()));
    let rig = setup.open();
    rig.put(&hashes(1, 8));
    drive.set_capacity(drive.used() + 2 * SLOT);
    for seed in 2..12 {
        drop(rig.fill(&hashes(seed, 8)));
        rig.manager.flush_blocking(LONG).unwrap();
    }
    rig.check();
    // What is said to be there is there, and the tiers above never noticed.
    assert_eq!(rig.get(&hashes(11, 8)).blocks.len(), 8);
    rig.clear_memory();
    for seed in 1..12 {
        let said = rig.manager.lookup(&hashes(seed, 8)).unwrap().len();
        assert_eq!(rig.get(&hashes(seed, 8)).blocks.len(), said);
        rig.clear_memory();
    }
    rig.manager.shutdown_blocking(LONG);
}

#[test]
fn a_host_tier_full_of_blocks_in_use_starves_no_load() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Setup::new(8, 64).dir(dir.path()).open();
    let (cold, held) = (hashes(1, 8), hashes(2, 8));
    rig.put(&cold);
    rig.clear_memory();
    rig.put(&held);
    let host = rig.manager.host().unwrap();
    let pinned = host.match_sequence_hashes_blocking(&held).unwrap();
    assert_eq!((pinned.len(), host.available_blocks()), (8, 0));
    rig.clear_device();
    assert_eq!(rig.get(&cold).blocks.len(), 8);
    drop(pinned);
}
