//! What a drive that fails costs: its own blocks, and nothing else.

use std::sync::Arc;

use dynamo_llm::block_manager::{
    TransferError,
    io::{
        FileOp,
        fault::{FaultVolume, Faults, MemoryVolume},
    },
};

use super::tools::{eventually, quarantined};
use crate::rig::{FROM_DISK, LONG, Setup, hashes};

#[test]
fn a_failed_store_is_reported_and_a_failed_load_is_a_miss_that_is_not_offered_again() {
    let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1)));
    let setup = Setup::new(0, 64).volume(drive.clone()).manual();
    let rig = setup.open();
    let chain = hashes(1, 8);
    let only = |only| Faults { only: Some(only), errors: 1.0, ..Faults::none(1) };

    drive.set_faults(only(FileOp::Write));
    let results = rig.store(&chain[..3]);
    assert!(results.iter().all(|r| matches!(r, Err(TransferError::Disk(_)))), "{results:?}");
    assert_eq!(rig.on_disk(&chain), 0);
    drive.set_faults(Faults::none(1));
    rig.clear_memory();
    assert!(rig.store(&chain).iter().all(Result::is_ok));

    rig.clear_memory();
    drive.set_faults(only(FileOp::Read));
    let arrived = rig.get(&chain);
    assert!(arrived.blocks.is_empty());
    drive.set_faults(Faults::none(1));
    assert!(rig.manager.lookup(&chain).unwrap().is_empty(), "lost blocks are not offered again");
    rig.check();
    rig.manager.shutdown_blocking(LONG);
}

#[test]
fn a_read_only_drive_still_serves_what_it_has() {
    let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1)));
    let rig = Setup::new(32, 64).volume(drive.clone()).open();
    let chain = hashes(1, 8);
    rig.put(&chain);
    rig.clear_memory();
    let (only, code) = (Some(FileOp::Write), libc::EROFS);
    drive.set_faults(Faults { only, code, errors: 1.0, ..Faults::none(1) });
    assert_eq!(rig.get(&chain).blocks.len(), 8);
    for seed in 2..6 {
        drop(rig.fill(&hashes(seed, 8)));
        rig.manager.flush_blocking(LONG).unwrap();
    }
    rig.clear_memory();
    assert_eq!(rig.get(&chain).blocks.len(), 8);
    rig.manager.shutdown_blocking(LONG);
}

#[test]
fn torn_writes_are_found_at_the_first_read() {
    let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1)));
    let setup = Setup::new(0, 256).volume(drive.clone());
    let rig = setup.with(|config| config.model.inner_dim = 1024).open();
    drive.set_faults(Faults { only: Some(FileOp::Write), tears: 0.3, ..Faults::none(3) });
    for seed in 1..12 {
        drop(rig.fill(&hashes(seed, 8)));
        rig.manager.flush_blocking(LONG).unwrap();
    }
    drive.set_faults(Faults::none(1));
    rig.clear_memory();
    let mut arrived = 0;
    for seed in 1..12 {
        // `get` compares every byte.
        arrived += rig.get(&hashes(seed, 8)).blocks.len();
        rig.clear_memory();
    }
    assert!(drive.injected() > 0 && arrived < 88);
    // The drive is well again, and so are the slots.
    assert!(rig.edge(FROM_DISK).failures["verification"] > 0);
    eventually("all slots are in use again", || {
        rig.manager.disk().unwrap().status().mutable == 0 && quarantined(&rig) == 0
    });
    let again = hashes(99, 8);
    rig.put(&again);
    rig.clear_memory();
    assert_eq!(rig.get(&again).blocks.len(), 8);
    rig.check();
    rig.manager.shutdown_blocking(LONG);
}
