//! Where blocks go.

use std::sync::Arc;

use dynamo_llm::block_manager::{
    Key, KvBlockManager, KvBlockManagerConfig, KvManagerLayoutConfig, KvManagerModelConfig,
    LayoutType, SequenceHash, Tier,
    config::{Capacity, DriveConfig},
    storage::{DiskAllocator, SystemAllocator},
};

use crate::{
    rig::{Rig, hashes},
    several::{Drives, arriving, blocks_in, singles, store_all},
};

#[test]
fn blocks_spread_by_capacity_and_are_found_again_whatever_the_order_of_the_list() {
    let mut drives = Drives::new(&[("a", 100), ("b", 300)]);
    let rig = drives.open();
    let all = singles(1, 200);
    assert_eq!(store_all(&rig, &all), 200);
    assert_eq!(arriving(&rig, &all), all);
    rig.close();
    let (a, b) = (blocks_in(&drives.dir("a")), blocks_in(&drives.dir("b")));
    assert_eq!(a + b, 200);
    // A quarter of them is 50, give or take 6.1; six times that.
    assert!(a.abs_diff(50) < 37, "{a} and {b}");

    drives.setup.settings.disk.drives.reverse();
    let rig = drives.open();
    assert_eq!(arriving(&rig, &all), all);
    assert_eq!(store_all(&rig, &all), 200, "they are there already");
    rig.close();
    assert_eq!((blocks_in(&drives.dir("a")), blocks_in(&drives.dir("b"))), (a, b));
}

#[test]
fn a_chain_that_lies_on_all_drives_is_one_match_and_comes_up_whole() {
    let drives = Drives::new(&[("a", 40), ("b", 40), ("c", 40)]);
    let rig = drives.open();
    let chain = hashes(1, 16);
    assert!(rig.store(&chain).iter().all(Result::is_ok));
    rig.clear_memory();
    let found = rig.manager.lookup(&chain).unwrap();
    assert_eq!((found.len(), found.segments().len()), (16, 1));
    drop(found);
    assert_eq!(rig.get(&chain).blocks.len(), 16);
    let hits: Vec<u64> = rig.manager.status().drives.iter().map(|drive| drive.hits).collect();
    // Folders have new names each time, and blocks other drives: hardly ever all of them one.
    assert!(hits.iter().all(|&hits| hits < 16) && hits.iter().sum::<u64>() == 16, "{hits:?}");
    rig.close();
}

#[test]
fn each_drive_makes_room_among_its_own_blocks() {
    let drives = Drives::new(&[("a", 20), ("b", 60)]);
    let rig = drives.open();
    let all = singles(1, 400);
    assert_eq!(store_all(&rig, &all), 400);
    rig.check();
    rig.close();
    assert_eq!((blocks_in(&drives.dir("a")), blocks_in(&drives.dir("b"))), (20, 60));
    let rig = drives.open();
    assert_eq!(arriving(&rig, &all).len(), 80);
    assert!(arriving(&rig, &all).contains(all.last().unwrap()));
    rig.close();
}

#[test]
fn what_is_left_of_a_chain_is_its_beginning_on_whichever_drives_it_lies() {
    let drives = Drives::new(&[("a", 12), ("b", 12)]);
    let rig = drives.open();
    let chains: Vec<_> = (1..=20).map(|seed| hashes(seed, 6)).collect();
    let there = |rig: &Rig, chain: &[SequenceHash]| {
        let keys: Vec<Key> = chain.iter().map(|&hash| Key::new(hash, 0)).collect();
        let there = rig.manager.disk().unwrap().blocks().pool().contains(&keys);
        assert!(there.is_sorted_by(|before, after| before >= after), "{there:?}");
        there.iter().filter(|&&there| there).count()
    };
    for stored in 1..=chains.len() {
        assert!(rig.store(&chains[stored - 1]).iter().all(Result::is_ok));
        rig.clear_memory();
        assert_eq!(there(&rig, &chains[stored - 1]), 6);
        let left: usize = chains.iter().map(|chain| there(&rig, chain)).sum();
        // The shares of the two follow the names of their folders, which are new each time.
        assert!(left >= 10.min(6 * stored), "{left} of 24 after {stored}");
    }
    let left: Vec<usize> = chains.iter().map(|chain| there(&rig, chain)).collect();
    rig.close();
    let rig = drives.open();
    for (chain, left) in chains.iter().zip(left) {
        assert!(rig.on_disk(chain) >= left);
    }
    rig.close();
}

#[test]
fn a_drive_that_is_added_moves_nothing_and_takes_its_share_of_what_is_new() {
    let mut drives = Drives::new(&[("a", 200), ("b", 200)]);
    let second = drives.setup.settings.disk.drives.pop().unwrap();
    let rig = drives.open();
    let (old, new) = (singles(1, 60), singles(2, 60));
    assert_eq!(store_all(&rig, &old), 60);
    rig.close();
    drives.setup.settings.disk.drives.push(second);
    let rig = drives.open();
    assert_eq!(arriving(&rig, &old), old);
    assert_eq!(store_all(&rig, &new), 60);
    rig.close();
    let b = blocks_in(&drives.dir("b"));
    assert!(b.abs_diff(30) < 24, "{b} of 60");
    assert_eq!(blocks_in(&drives.dir("a")) + b, 120);
}

#[test]
fn a_reset_holds_on_every_drive() {
    let drives = Drives::new(&[("a", 40), ("b", 40)]);
    let rig = drives.open();
    let all = singles(1, 30);
    assert_eq!(store_all(&rig, &all), 30);
    assert_eq!(rig.manager.reset_blocking().unwrap().held[&Tier::Disk], 0);
    assert!(arriving(&rig, &all).is_empty());
    rig.close();
    let rig = drives.open();
    assert!(arriving(&rig, &all).is_empty());
    rig.close();
}

#[test]
fn a_program_may_name_the_drive_by_its_allocator() {
    let dir = tempfile::tempdir().unwrap();
    let host = KvManagerLayoutConfig { num_blocks: Some(8), ..Default::default() };
    let config = |disk| {
        let model = KvManagerModelConfig::builder().num_layers(2).page_size(4).inner_dim(8).build();
        let builder = KvBlockManagerConfig::builder().model(model).host_layout(host.clone());
        builder.device_layout(host.clone()).disk_layout(disk).build()
    };
    let allocator = Arc::new(DiskAllocator::new(dir.path()));
    let disk = KvManagerLayoutConfig {
        num_blocks: Some(16),
        allocator: Some(allocator),
        ..Default::default()
    };
    let manager = KvBlockManager::new_blocking(config(disk.clone()).unwrap()).unwrap();
    assert_eq!(manager.disk().unwrap().total_blocks(), 16);
    drop(manager);

    for (field, wrong) in [
        (
            "allocator",
            KvManagerLayoutConfig { allocator: Some(Arc::new(SystemAllocator)), ..disk.clone() },
        ),
        ("layout_type", KvManagerLayoutConfig { layout_type: Some(LayoutType::Paged), ..disk }),
    ] {
        let error = config(wrong).unwrap_err().to_string();
        assert!(error.contains(&format!("disk_layout.{field}")), "{error}");
    }
}

#[test]
fn what_makes_no_sense_together_is_refused_by_name() {
    let refused = |change: &dyn Fn(&mut Drives)| {
        let mut drives = Drives::new(&[("a", 4), ("b", 4)]);
        change(&mut drives);
        drives.try_open().map(|_| ()).unwrap_err().to_string()
    };
    let text = refused(&|drives| drives.setup.settings.disk.dir = Some("/x".to_owned()));
    assert!(text.contains("disk.drives") && text.contains("for one drive"), "{text}");
    let text = refused(&|drives| {
        let list = &mut drives.setup.settings.disk.drives;
        let again = format!("{}/", list[0].dir);
        list.push(DriveConfig::new(again, Capacity::Blocks(1)));
    });
    assert!(text.contains("disk.drives[2].dir") && text.contains("twice"), "{text}");
    let text = refused(&|drives| {
        drives.setup.settings.disk.drives[1].write_bytes_per_day = Some(0);
    });
    assert!(text.contains("disk.drives[1].write_bytes_per_day"), "{text}");
    let text = refused(&|drives| {
        drives.setup.settings.disk.drives[1].capacity = Capacity::Default;
    });
    assert!(text.contains("disk.drives[1].bytes"), "{text}");
}
