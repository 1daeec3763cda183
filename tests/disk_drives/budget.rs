//! How much is written to a drive.

use dynamo_llm::block_manager::{Tier, TransferError};

use crate::{
    rig::hashes,
    several::{Drives, arriving, singles, store_all},
};

/// What storing a block of the rig writes: a slot and a record.
const STORE: u64 = 4096 + 4096 + 256;

fn with_budget(stores_a_day: u64) -> Drives {
    let mut drives = Drives::new(&[("a", 400)]);
    let drive = &mut drives.setup.settings.disk.drives[0];
    drive.write_bytes_per_day = Some(stores_a_day * STORE);
    drives
}

#[test]
fn a_budget_that_is_used_up_takes_only_what_is_offered_again() {
    let drives = with_budget(24 * 10);
    let rig = drives.open();
    let all = singles(1, 30);
    assert_eq!(store_all(&rig, &all), 10, "an hour's worth");
    let results = rig.store(&all[20..21]);
    assert_eq!(results[0], Ok(dynamo_llm::block_manager::Arrival::Copied), "a second time");
    let results = rig.store(&singles(2, 1));
    assert_eq!(results[0], Err(TransferError::Declined { tier: Tier::Disk }));
    rig.clear_memory();
    assert_eq!(arriving(&rig, &all).len(), 11);

    let status = rig.manager.status();
    let drive = &status.drives[0];
    assert_eq!(drive.written_bytes, 11 * STORE);
    assert_eq!((drive.hits, drive.declined), (11, 21));
    assert_eq!(drive.written_bytes_per_hit, Some(STORE as f64));
    // The clock of the system goes on.
    let left = drive.budget_left_bytes.unwrap();
    assert!((-(STORE as i64)..0).contains(&left), "{left}");
    assert_eq!(status.edges.values().map(|edge| edge.failures["declined"]).sum::<u64>(), 21);
    rig.close();
}

#[test]
fn a_chain_that_is_cut_by_the_budget_is_completed_when_it_comes_again() {
    let drives = with_budget(24 * 8);
    let rig = drives.open();
    assert_eq!(store_all(&rig, &singles(1, 6)), 6);
    let chain = hashes(7, 6);
    let stored = rig.store(&chain).iter().filter(|result| result.is_ok()).count();
    assert_eq!(stored, 2);
    rig.clear_memory();
    let results = rig.store(&chain);
    assert!(results.iter().all(Result::is_ok), "offered again: {results:?}");
    rig.clear_memory();
    assert_eq!(rig.get(&chain).blocks.len(), 6);
    rig.close();
}

#[test]
fn by_itself_a_hit_above_is_worth_a_write() {
    let mut drives = with_budget(24);
    drives.setup.settings.host.capacity = dynamo_llm::block_manager::config::Capacity::Blocks(64);
    drives.setup.settings.offload.policy =
        dynamo_llm::block_manager::config::OffloadPolicy::WriteThrough;
    let rig = drives.open();
    for seed in 1..=5 {
        rig.put(&hashes(seed, 1));
    }
    let on_disk = |seed| rig.on_disk(&hashes(seed, 1));
    assert_eq!((1..=5).map(on_disk).sum::<usize>(), 1, "the budget of an hour");
    rig.clear_device();
    assert_eq!(rig.get(&hashes(4, 1)).blocks.len(), 1, "from the host tier");
    assert_eq!(rig.manager.flush_blocking(crate::rig::LONG).unwrap(), 0);
    assert_eq!(on_disk(4), 1);
    rig.close();
}

#[test]
fn a_drive_without_a_budget_declines_nothing() {
    let mut drives = Drives::new(&[("a", 200), ("b", 200)]);
    drives.setup.settings.disk.drives[0].write_bytes_per_day = Some(1);
    let rig = drives.open();
    let all = singles(1, 60);
    let stored = store_all(&rig, &all);
    let figures = rig.manager.status().drives;
    assert_eq!(figures[1].budget_left_bytes, None);
    assert_eq!(figures[1].declined, 0);
    assert!(figures[0].declined > 10, "{figures:?}");
    assert_eq!(stored as u64 + figures[0].declined, 60);
    rig.close();
}
