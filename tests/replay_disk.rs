//! Replays through a disk tier: restarts keep hits, and a second run starts warm.

#![allow(clippy::unwrap_used)]

use std::{num::NonZeroU64, ops::ControlFlow, path::Path};

use dynamo_llm::block_manager::{
    Tier,
    metrics::Edge,
    replay::{ByteReplay, ByteReplayOptions, Capacity, Trace, with_bytes},
    storage::disk::{inspect, verify},
};

fn trace() -> Trace {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = path.join("examples/traces/mooncake_conversation.jsonl");
    Trace::open(path, None).unwrap().limited(150)
}

fn run(dir: Option<&Path>, host: u64, every: Option<u64>) -> ByteReplay {
    let options = ByteReplayOptions::builder()
        .device_blocks(Capacity::Blocks(400))
        .host_blocks(Capacity::Blocks(host))
        .maybe_disk(dir.map(Path::to_owned))
        .maybe_restart_every(every.and_then(NonZeroU64::new))
        .bytes_per_block(4096)
        .verify(true)
        .build();
    let replay = with_bytes(&trace(), &options, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(replay.verify_failures, 0);
    assert!(replay.failures.is_empty(), "{:?}", replay.failures);
    replay
}

#[test]
fn a_drive_that_holds_everything_finds_what_can_be_found_also_across_restarts() {
    let dir = tempfile::tempdir().unwrap();
    // Memory for everything, and no restart: nothing finds more.
    let most = run(None, u64::from(trace().unique_blocks()), None);
    for (host, every) in [(0, None), (600, None), (0, Some(20)), (600, Some(20))] {
        let dir = dir.path().join(format!("{host} {every:?}"));
        let replay = run(Some(&dir), host, every);
        assert_eq!(replay.hit_blocks, most.hit_blocks, "{host} {every:?}");
        assert!(replay.hits.disk > 0);
        assert_eq!(replay.restarts, if every.is_some() { 7 } else { 0 });
        let edge = Edge { from: Tier::Disk, to: Tier::Device };
        assert_eq!(replay.bytes[&edge], 4096 * replay.hits.disk);
        // A block, a page for its sums, a record.
        let written = replay.capacity_blocks[&Tier::Disk] * (4096 + 4096 + 256);
        assert_eq!(replay.disk_written_bytes, written);
        let per_hit = written as f64 / replay.hits.disk as f64;
        assert_eq!(replay.disk_written_bytes_per_hit, Some(per_hit));
        let inspection = inspect(&dir).unwrap();
        assert_eq!(inspection.blocks, replay.capacity_blocks[&Tier::Disk]);
    }
    // Without a drive a restart forgets.
    assert!(run(None, 600, Some(20)).hit_blocks < most.hit_blocks);
}

#[test]
fn a_second_run_over_the_directory_starts_warm_and_every_block_verifies() {
    let dir = tempfile::tempdir().unwrap();
    let cold = run(Some(dir.path()), 600, None);
    let warm = run(Some(dir.path()), 600, None);
    let served = warm.blocks - warm.hit_blocks;
    assert!(warm.hit_blocks > cold.hit_blocks);
    // What was cut off at the device's size is all that there is to miss.
    assert!(warm.cut_requests > 0 || served == 0);
    let mut told = 0;
    let verified = verify(dir.path(), |done, total| {
        assert!(done <= total);
        told = done;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!((verified.verified, verified.corrupt), (told, 0));
    assert_eq!(told, inspect(dir.path()).unwrap().blocks);
}
