//! What a drive without room costs, and that the room of other tiers is none of its business.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use dynamo_llm::block_manager::{
    Tier, TransferError,
    config::{Capacity, Severity},
    io::{IoError, PsyncOptions, fault::MemoryVolume},
    metrics::Edge,
    storage::disk::DiskError,
};

use super::tools::SLOT;
use crate::rig::{LONG, Setup, TO_DISK, hashes};

const PAST_THE_HOST: Edge = Edge { from: Tier::Device, to: Tier::Disk };

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
fn a_limit_beyond_the_file_system_is_said_at_start() {
    let drive = MemoryVolume::new();
    let setup = Setup::new(0, 64).volume(Arc::new(drive.clone()));
    let said = || {
        let rig = setup.open();
        let findings = rig.manager.findings().to_vec();
        rig.close();
        findings.into_iter().find(|finding| finding.field == "disk.bytes")
    };
    drive.set_capacity(65 * (SLOT + 256) + (1 << 18));
    assert_eq!(said(), None);
    drive.set_capacity(30 * SLOT + (1 << 18));
    let finding = said().unwrap();
    assert_eq!(finding.severity, Severity::Warning);
    assert!(finding.to_string().contains("the file system has"), "{finding}");
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

#[test]
fn a_device_full_of_blocks_in_use_is_busy_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Setup::new(8, 64).dir(dir.path()).open();
    let cold = hashes(1, 4);
    rig.put(&cold);
    rig.clear_memory();
    // The host tier is full of blocks that nobody holds: it makes way.
    rig.put(&hashes(2, 8));
    rig.clear_device();
    assert_eq!(rig.get(&cold).blocks.len(), 4);
    // They go to the host tier by themselves, which holds them meanwhile.
    assert_eq!(rig.manager.flush_blocking(LONG).unwrap(), 0);
    rig.clear_memory();
    let pinned = rig.manager.device().unwrap().allocate_blocks_blocking(16).unwrap();
    let start = Instant::now();
    let arrived = rig.get(&cold);
    // Short beside the time that the load was granted.
    assert!(start.elapsed() < LONG / 2);
    assert!(arrived.blocks.is_empty());
    let busy = TransferError::NoRoom { tier: Tier::Device };
    assert!(arrived.results.iter().all(|result| *result == Err(busy.clone())));
    drop(pinned);
    assert_eq!(rig.get(&cold).blocks.len(), 4);
    rig.close();
}

#[test]
fn the_limit_holds_at_every_moment_while_four_threads_store() {
    let dir = tempfile::tempdir().unwrap();
    let limit = 1 << 20;
    let setup = Setup::new(0, 1).dir(dir.path()).manual().with(|config| {
        config.disk.capacity = Capacity::Bytes(limit);
        config.device.capacity = Capacity::Blocks(64);
    });
    let rig = setup.open();
    // A file system counts its own books of a file too: a page each.
    let books = 4 * 4096;
    let on_drive = || -> u64 {
        let files = fs::read_dir(dir.path()).unwrap();
        let blocks = files.filter_map(|file| Some(file.ok()?.metadata().ok()?.blocks()));
        blocks.sum::<u64>() * 512
    };
    let done = AtomicBool::new(false);
    let (most, samples) = thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let (mut most, mut samples) = (0, 0_u64);
            while !done.load(Ordering::Relaxed) {
                most = on_drive().max(most);
                samples += 1;
            }
            (most, samples)
        });
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let rig = &rig;
                scope.spawn(move || {
                    for round in 0..40 {
                        let results = rig.store(&hashes(writer * 100 + round, 8));
                        assert!(results.iter().all(Result::is_ok), "{results:?}");
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        sampler.join().unwrap()
    });
    assert!(samples > 0 && most <= limit + books, "{most} of {limit}");
    assert!(most > limit / 2, "{most} of {limit}: the limit was never near");
    assert!(rig.manager.disk().unwrap().status().evictions > 1000);
    rig.close();
}

#[test]
fn a_host_smaller_than_the_device_keeps_turning_over_and_everything_goes_down() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(20, 400).dir(dir.path());
    let rig = setup.with(|config| config.device.capacity = Capacity::Blocks(100)).open();
    for seed in 0..100 {
        rig.put(&hashes(seed, 10));
    }
    let (host, disk) = (rig.edge(Edge { from: Tier::Device, to: Tier::Host }), rig.edge(TO_DISK));
    assert_eq!((host.blocks, host.drops, host.queue_depth), (1000, 0, 0));
    assert_eq!((disk.blocks, disk.drops, disk.queue_depth), (1000, 0, 0));
    rig.clear_memory();
    for seed in 60..100 {
        assert_eq!(rig.get(&hashes(seed, 10)).blocks.len(), 10);
        rig.clear_memory();
    }
    rig.close();
}

#[test]
fn every_block_that_was_said_to_be_stored_is_there_and_the_others_were_named() {
    let drive = MemoryVolume::new();
    let mut setup = Setup::new(0, 64).volume(Arc::new(drive.clone())).manual();
    let mut io = PsyncOptions::default();
    (io.load_threads, io.store_threads, io.store_queue) = (1, 1, 2);
    setup.io = Some(io);
    let rig = setup.open();
    let mut refused = 0;
    for seed in 1..20 {
        let chain = hashes(seed, 16);
        let results = rig.store(&chain);
        rig.clear_memory();
        for (hash, result) in chain.iter().zip(results) {
            match result {
                Ok(_) => assert_eq!(rig.on_disk(&[*hash]), 1),
                // To be tried again.
                Err(TransferError::Disk(DiskError::Io(IoError::QueueFull {
                    limit: 2, ..
                }))) => {
                    assert_eq!(rig.on_disk(&[*hash]), 0);
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        for hash in &chain {
            assert_eq!(rig.get(&[*hash]).blocks.len(), rig.on_disk(&[*hash]));
        }
        rig.clear_memory();
    }
    assert!(refused > 0);
    rig.close();
}

#[test]
fn a_queue_that_is_too_short_drops_and_says_how_many() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::new(0, 256).dir(dir.path()).with(|config| {
        config.offload.queue_blocks = 4;
        config.device.capacity = Capacity::Blocks(128);
    });
    let rig = setup.open();
    for seed in 0..8 {
        drop(rig.fill(&hashes(seed, 16)));
    }
    assert_eq!(rig.manager.flush_blocking(LONG).unwrap(), 0);
    let edge = rig.edge(PAST_THE_HOST);
    assert_eq!(edge.blocks + edge.drops + edge.present, 128, "{edge:?}");
    rig.clear_memory();
    let there = (0..8).flat_map(|seed| hashes(seed, 16));
    let there = there.filter(|hash| rig.get(&[*hash]).blocks.len() == 1).count() as u64;
    assert_eq!(there, edge.blocks);
    rig.close();
}

#[test]
fn a_store_that_found_no_room_is_counted_and_not_listed_and_the_block_stays_where_it_was() {
    let drive = MemoryVolume::new();
    let rig = Setup::new(0, 16).volume(Arc::new(drive.clone())).manual().open();
    drive.set_capacity(drive.used());
    let chain = hashes(1, 4);
    let held = rig.fill(&chain);
    let stored = rig.manager.offload_to(&held, Tier::Disk).unwrap().wait(Some(LONG)).unwrap();
    assert!(stored.iter().all(Result::is_err), "{stored:?}");
    drop(held);
    assert_eq!(rig.edge(PAST_THE_HOST).failures["no_room"], 4);
    let found = rig.manager.lookup(&chain).unwrap();
    assert_eq!((found.count(Tier::Device), found.count(Tier::Disk)), (4, 0));
    drop(found);
    assert_eq!(rig.on_disk(&chain), 0);
    rig.clear_device();
    assert!(rig.manager.lookup(&chain).unwrap().is_empty());
    rig.manager.shutdown_blocking(Duration::from_secs(1));
}
