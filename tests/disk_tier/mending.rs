//! Slots that failed or found no room come back by themselves, or are never used again.

use std::sync::Arc;

use dynamo_llm::block_manager::{
    Tier, TransferError,
    io::{
        FileOp,
        fault::{FaultVolume, Faults, MemoryVolume},
    },
    metrics::Edge,
};

use super::tools::{DATA, SLOT, eventually, quarantined};
use crate::rig::{FROM_DISK, LONG, Rig, Setup, hashes};

const TO_DISK: Edge = Edge { from: Tier::Device, to: Tier::Disk };

fn faulty() -> (Arc<FaultVolume>, Setup) {
    let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1)));
    // Two chains of four fit, so every slot is in use all the time.
    let setup = Setup::new(0, 8).volume(drive.clone()).manual();
    (drive, setup)
}

/// Makes the slot bad that the first block stored here lies in.
fn spoil(drive: &FaultVolume, heals: bool) {
    drive.damage(DATA, 100..200, heals).unwrap();
}

fn stores(rig: &Rig, seed: u32) -> usize {
    let results = rig.store(&hashes(seed, 4));
    rig.clear_memory();
    results.iter().filter(|result| result.is_ok()).count()
}

#[test]
fn a_bad_sector_that_heals_when_written_costs_one_block_and_no_slot() {
    let (drive, setup) = faulty();
    let rig = setup.open();
    assert_eq!(stores(&rig, 1), 4);
    spoil(&drive, true);
    let arrived = rig.get(&hashes(1, 4));
    assert_eq!(arrived.blocks.len(), 0);
    let lost =
        arrived.results.iter().filter(|result| matches!(result, Err(TransferError::Disk(_))));
    assert_eq!(lost.count(), 1);
    drop(arrived);
    rig.clear_memory();
    // Written over, the sector is another one.
    eventually("the slot is in use again", || {
        let status = rig.manager.disk().unwrap().status();
        (status.quarantined, status.mutable) == (0, 0)
    });
    for seed in 2..6 {
        assert_eq!(stores(&rig, seed), 4);
    }
    assert_eq!(rig.get(&hashes(5, 4)).blocks.len(), 4);
    assert_eq!(rig.manager.disk().unwrap().status().capacity, 8);
    // Once more, and its time is over.
    rig.clear_memory();
    spoil(&drive, true);
    let failed_before: u64 = rig.edge(FROM_DISK).failures["other"];
    for seed in 4..6 {
        rig.get(&hashes(seed, 4));
        rig.clear_memory();
    }
    assert_eq!(rig.edge(FROM_DISK).failures["other"], failed_before + 1);
    for seed in 6..20 {
        assert_eq!(stores(&rig, seed), 4);
    }
    assert_eq!(quarantined(&rig), 1, "what failed twice is retired");
    assert_eq!(rig.manager.disk().unwrap().blocks().scrub(), (0, 1));
    rig.close();
}

#[test]
fn a_bad_sector_that_does_not_heal_is_retired_and_harms_nothing_else() {
    let (drive, setup) = faulty();
    let rig = setup.open();
    assert_eq!(stores(&rig, 1), 4);
    spoil(&drive, false);
    let lost = |arrived: dynamo_llm::block_manager::OnboardedBlocks| {
        arrived.results.iter().filter(|result| result.is_err()).count()
    };
    assert_eq!(lost(rig.get(&hashes(1, 4))), 1);
    rig.clear_memory();
    for seed in 2..20 {
        // Whatever is being tested, there is room for these: the others give way.
        assert_eq!(stores(&rig, seed), 4);
        assert_eq!(lost(rig.get(&hashes(seed, 4))), 0, "nothing is stored there again");
        rig.clear_memory();
    }
    eventually("it is retired", || quarantined(&rig) == 1);
    for seed in 20..30 {
        assert_eq!(stores(&rig, seed), 4);
    }
    assert_eq!(quarantined(&rig), 1);
    assert_eq!(rig.manager.disk().unwrap().blocks().scrub(), (0, 1), "retired is retired");
    rig.close();
    // The next process knows nothing of it, finds it, and gives it up again.
    let rig = setup.open();
    for seed in 30..60 {
        stores(&rig, seed);
        rig.get(&hashes(seed, 4));
        rig.clear_memory();
    }
    eventually("it is retired again", || quarantined(&rig) == 1);
    rig.close();
}

#[test]
fn an_outage_of_the_whole_drive_retires_no_slot() {
    let (drive, setup) = faulty();
    let rig = setup.open();
    let only = Some(FileOp::Write);
    drive.set_faults(Faults { only, errors: 1.0, ..Faults::none(1) });
    assert_eq!(stores(&rig, 1), 0);
    drive.set_faults(Faults::none(1));
    eventually("stores go well again", || {
        stores(&rig, 2);
        let status = rig.manager.disk().unwrap().status();
        (status.quarantined, status.mutable) == (0, 0)
    });
    assert_eq!(stores(&rig, 3), 4);
    rig.close();
}

#[test]
fn slots_that_found_no_room_are_used_when_there_is_some() {
    for sparse in [false, true] {
        let drive = MemoryVolume::new();
        drive.set_abilities(!sparse, true);
        let rig = Setup::new(0, 32).volume(Arc::new(drive.clone())).manual().open();
        assert_eq!(stores(&rig, 1), 4);
        // Steps of room may be larger than what was needed so far.
        let taken = drive.used();
        drive.set_capacity(taken + 2 * SLOT);
        let mut refused = 0;
        for seed in 2..20 {
            refused += 4 - stores(&rig, seed);
        }
        assert!(refused > 0);
        assert!(quarantined(&rig) > 0);
        assert_eq!(stores(&rig, 20), 4, "old blocks make way");
        drive.set_capacity(1 << 30);
        let mut seed = 21;
        eventually("every slot has room", || {
            seed += 1;
            // Nothing fails on the way.
            assert_eq!(stores(&rig, seed), 4);
            let status = rig.manager.disk().unwrap().status();
            (status.quarantined, status.mutable) == (0, 0)
        });
        for seed in 10_001..=10_008 {
            assert_eq!(stores(&rig, seed), 4);
        }
        for seed in 10_001..=10_008 {
            assert_eq!(rig.on_disk(&hashes(seed, 4)), 4, "the whole tier is in use");
        }
        rig.close();
    }
}

#[test]
fn a_drive_that_was_full_from_the_start_is_used_once_there_is_room() {
    let drive = MemoryVolume::new();
    let rig = Setup::new(0, 8).volume(Arc::new(drive.clone())).manual().open();
    drive.set_capacity(drive.used());
    let results = rig.store(&hashes(1, 8));
    assert!(results.iter().all(Result::is_err), "{results:?}");
    rig.clear_memory();
    assert_eq!(stores(&rig, 2), 0);
    drive.set_capacity(1 << 30);
    eventually("there is room", || stores(&rig, 3) == 4);
    rig.close();
}

#[test]
fn what_found_no_room_is_offered_again_and_no_hit_reaches_across_the_hole() {
    let drive = MemoryVolume::new();
    let rig = Setup::new(0, 16).volume(Arc::new(drive.clone())).open();
    drive.set_capacity(drive.used() + 4 * (SLOT + 512));
    let chain = hashes(1, 8);
    let held = rig.fill(&chain);
    let unfinished = rig.manager.flush_blocking(LONG).unwrap();
    let there = rig.on_disk(&chain);
    assert!(there < 8 && unfinished == 8 - there, "{there} {unfinished}");
    assert!(there > 0);
    let later = rig.manager.disk().unwrap().match_sequence_hashes_blocking(&chain[there..]);
    assert!(later.unwrap().is_empty(), "the end is not there without its beginning");
    drive.set_capacity(1 << 30);
    eventually("the rest has gone down", || rig.manager.flush_blocking(LONG).unwrap() == 0);
    assert_eq!(rig.on_disk(&chain), 8);
    assert!(rig.edge(TO_DISK).failures["no_room"] == 0, "the queue has kept them");
    drop(held);
    rig.clear_memory();
    assert_eq!(rig.get(&chain).blocks.len(), 8);
    rig.close();
}
