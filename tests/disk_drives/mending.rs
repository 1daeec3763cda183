//! Slots out of use: each drive's are judged by its own stores, whatever the others can.

use std::{
    thread,
    time::{Duration, Instant},
};

use dynamo_llm::block_manager::io::{FileOp, fault::Faults};

use crate::{
    rig::{LONG, Rig, hashes},
    several::{Drives, arriving, blocks_in, singles, store_all},
};

const BLOCKS: usize = 40;

/// Two drives, and whoever fails is tried again at once.
fn drives() -> Drives {
    let mut drives = Drives::new(&[("a", BLOCKS), ("b", BLOCKS)]);
    if let Some(io) = &mut drives.setup.io {
        io.health.probe_after = Duration::ZERO;
    }
    drives
}

/// Stores `count` blocks that have never been there; how many were taken.
fn store_new(rig: &Rig, next: &mut u32, count: u32) -> usize {
    let new: Vec<_> = (*next..*next + count).flat_map(|seed| hashes(seed, 1)).collect();
    *next += count;
    store_all(rig, &new)
}

fn out_of_use(rig: &Rig) -> u64 {
    let status = rig.manager.disk().unwrap().status();
    status.quarantined + status.mutable
}

/// Stores until so many slots are out of use, and no more.
fn store_until(rig: &Rig, next: &mut u32, slots: u64) {
    let start = Instant::now();
    while out_of_use(rig) != slots {
        assert!(start.elapsed() < LONG, "{} slots are out of use, not {slots}", out_of_use(rig));
        store_new(rig, next, 1);
        thread::yield_now();
    }
}

/// `b` can do nothing that these faults forbid while `a` stores; then it is well again.
fn outage(faults: Faults) {
    let drives = drives();
    let rig = drives.open();
    let mut next = 1;
    let old = singles(60, 30);
    assert_eq!(store_all(&rig, &old), 30);
    let on_a = blocks_in(&drives.dir("a"));
    drives.volumes["b"].set_faults(faults);
    let mut seen = 0;
    let mut stored = 0;
    for _ in 0..30 {
        arriving(&rig, &old);
        stored += store_new(&rig, &mut next, 8);
        seen = seen.max(out_of_use(&rig));
    }
    assert!(seen > 0, "no slot failed");
    assert!(stored as u64 > BLOCKS as u64 - on_a, "the living drive stores, and makes room");
    rig.check();
    drives.heal("b");
    store_until(&rig, &mut next, 0);
    // None of them is used up: the whole drive fills again.
    store_new(&rig, &mut next, 600);
    assert_eq!(out_of_use(&rig), 0);
    rig.close();
    for name in ["a", "b"] {
        assert_eq!(blocks_in(&drives.dir(name)), BLOCKS as u64);
    }
}

#[test]
fn a_dead_drive_beside_a_healthy_one_loses_no_slot() {
    outage(Faults { errors: 1.0, ..Faults::none(1) });
}

#[test]
fn nor_does_one_that_only_cannot_write() {
    outage(Faults { errors: 1.0, only: Some(FileOp::Write), ..Faults::none(1) });
}

#[test]
fn nor_does_one_that_only_cannot_read() {
    outage(Faults { errors: 1.0, only: Some(FileOp::Read), ..Faults::none(1) });
}

#[test]
fn a_bad_slot_is_retired_whatever_the_other_drive_does() {
    for dead in [false, true] {
        let drives = drives();
        let rig = drives.open();
        let mut next = 1;
        let old = singles(60, 60);
        assert_eq!(store_all(&rig, &old), 60);
        drives.volumes["a"].damage("dynamo-00000001.data", 100..200, false).unwrap();
        if dead {
            drives.kill("b");
        }
        // The block in it is asked for, and its slot tested.
        arriving(&rig, &old);
        store_new(&rig, &mut next, 200);
        drives.heal("b");
        store_until(&rig, &mut next, 1);
        store_new(&rig, &mut next, 400);
        assert_eq!(out_of_use(&rig), 1);
        assert_eq!(rig.manager.disk().unwrap().blocks().scrub(), (0, 1), "retired is retired");
        rig.close();
        assert_eq!(blocks_in(&drives.dir("a")), BLOCKS as u64 - 1);
        assert_eq!(blocks_in(&drives.dir("b")), BLOCKS as u64);
    }
}
