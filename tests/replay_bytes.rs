//! Replay with bytes: figures that can be worked out by hand, and faults that must not pass.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::{
    collections::BTreeMap,
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
};

use dynamo_llm::block_manager::{
    EvictionKind, ManagerError, Tier,
    metrics::Edge,
    replay::{
        ByteReplay, ByteReplayOptions, Capacity, ReplayEngines, ReplayError, Trace, index_only,
        with_bytes,
    },
    transfer::{Corruption, FaultEngine, Faults, HostEngine},
};
use proptest::prelude::*;

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/traces");
const DOWN: Edge = Edge { from: Tier::Device, to: Tier::Host };
const UP: Edge = Edge { from: Tier::Host, to: Tier::Device };

/// A trace of these prompts, one a second.
fn trace(prompts: &[&[u64]]) -> Trace {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("turns.jsonl");
    let lines: Vec<String> = prompts
        .iter()
        .enumerate()
        .map(|(second, ids)| format!("{{\"timestamp\": 1{second:05}, \"hash_ids\": {ids:?}}}"))
        .collect();
    fs::write(&path, lines.join("\n")).unwrap();
    Trace::open(path, None).unwrap()
}

fn shipped(name: &str, requests: usize) -> Trace {
    let path = Path::new(SHIPPED).join(format!("{name}.jsonl"));
    Trace::open(path, None).unwrap().limited(requests)
}

/// Tiers of so many blocks, small blocks, everything checked.
fn options(device: u64, host: u64) -> ByteReplayOptions {
    ByteReplayOptions::builder()
        .device_blocks(Capacity::Blocks(device))
        .host_blocks(Capacity::Blocks(host))
        .bytes_per_block(1000)
        .verify(true)
        .build()
}

fn replay(trace: &Trace, options: &ByteReplayOptions) -> ByteReplay {
    let result = with_bytes(trace, options, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(result.hit_blocks, result.hits.sum());
    let last = result.timeline.last().copied().unwrap_or_default();
    assert_eq!((last.requests, last.blocks), (result.requests, result.blocks));
    assert_eq!(last.hits, result.hits);
    result
}

fn hits(result: &ByteReplay) -> (u64, u64) {
    (result.hits.device, result.hits.host)
}

#[test]
fn two_prompts_that_take_turns_are_served_from_the_host() {
    let turns = trace(&[&[1, 2, 3], &[4, 5, 6], &[1, 2, 3], &[4, 5, 6]]);
    let result = replay(&turns, &options(3, 6));
    assert_eq!(hits(&result), (0, 6));
    assert_eq!(result.bytes, BTreeMap::from([(DOWN, 6 * 1000), (UP, 6 * 1000)]));
    // Three slots are taken three times after they were first filled.
    assert_eq!(result.evictions, BTreeMap::from([(Tier::Device, 9), (Tier::Host, 0)]));
    assert_eq!((result.verified_blocks, result.verify_failures), (6, 0));
    assert_eq!(result.failures, BTreeMap::new());
    assert!(result.latency_us.onboard.p50.unwrap() > 0.0);
    assert!(result.bandwidth[&UP] > 0.0);
    assert_eq!(result.timeline.len(), 4);
}

#[test]
fn a_block_counts_under_the_fastest_tier_that_holds_it() {
    // The second request drops block 3 from the device: last first. The third finds the rest.
    let turns = trace(&[&[1, 2, 3], &[4], &[1, 2, 3]]);
    assert_eq!(hits(&replay(&turns, &options(3, 6))), (2, 1));
    assert_eq!(hits(&replay(&turns, &options(3, 0))), (2, 0));
    assert_eq!(hits(&replay(&turns, &options(4, 6))), (3, 0));
}

#[test]
fn the_lower_tier_keeps_what_the_upper_tier_serves() {
    // Block 1 is served by the device all the time, which keeps it young in the host as well:
    // there 2, 3 and 4 come and go beside it, and 5 takes it from the device alone.
    let turns = trace(&[&[1], &[2], &[1], &[3], &[1], &[4], &[5], &[1]]);
    let result = replay(&turns, &options(2, 3));
    assert_eq!(hits(&result), (2, 1));
}

#[test]
fn without_a_host_tier_nothing_moves() {
    let turns = trace(&[&[1, 2], &[3, 4], &[1, 2]]);
    let result = replay(&turns, &options(2, 0));
    assert_eq!(hits(&result), (0, 0));
    assert_eq!(result.capacity_blocks, BTreeMap::from([(Tier::Device, 2)]));
    assert!(result.bytes.is_empty() && result.bandwidth.is_empty());
    assert_eq!(result.latency_us.onboard.p50, None);
}

#[test]
fn a_request_longer_than_the_device_tier_is_cut() {
    let turns = trace(&[&[1, 2, 3, 4, 5], &[1, 2, 3, 4, 5], &[1]]);
    let result = replay(&turns, &options(3, 9));
    assert_eq!((result.cut_requests, result.blocks), (2, 11));
    assert_eq!(hits(&result), (4, 0));
    assert_eq!(result.bytes[&DOWN], 3 * 1000);
}

#[test]
fn a_host_tier_that_is_too_small_keeps_what_it_can() {
    let turns = trace(&[&[1, 2, 3, 4], &[5, 6, 7, 8], &[1, 2, 3, 4]]);
    let result = replay(&turns, &options(4, 2));
    assert_eq!(result.hit_blocks, 0);
    assert_eq!(result.failures[&DOWN], BTreeMap::from([("no_room", 6)]));
}

#[test]
fn a_block_that_occurs_twice_in_a_request_is_two_visits() {
    let turns = trace(&[&[1, 2, 1], &[1, 2, 1]]);
    let result = replay(&turns, &options(4, 4));
    assert_eq!((result.blocks, result.unique_blocks), (6, 2));
    assert_eq!(hits(&result), (3, 0));
    assert_eq!(result.bytes[&DOWN], 2 * 1000);
}

#[test]
fn requests_without_blocks_and_traces_without_requests_are_served() {
    let result = replay(&trace(&[&[], &[1], &[]]), &options(1, 1));
    assert_eq!((result.requests, result.blocks), (3, 1));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.jsonl");
    fs::write(&path, "").unwrap();
    let none = Trace::open(path, "mooncake".parse().ok()).unwrap();
    let result = replay(&none, &options(1, 1));
    assert_eq!((result.requests, result.hit_rate.to_bits()), (0, 0));
}

#[test]
fn one_tier_reaches_the_rates_of_the_index_under_every_policy() {
    let trace = shipped("mooncake_conversation", 1500);
    for &policy in EvictionKind::ALL {
        let index = index_only(&trace, policy, 1500, |_| ControlFlow::Continue(())).unwrap();
        let mut options = options(1500, 0);
        options.policy = policy;
        options.bytes_per_block = 16;
        let result = replay(&trace, &options);
        assert_eq!((result.cut_requests, result.verify_failures), (0, 0));
        match policy {
            EvictionKind::Lru => assert_eq!(result.hit_blocks, index.hit_blocks),
            // A pool keeps chains whole and holds what a request uses, the index does neither.
            _ => assert!(
                (result.hit_rate - index.hit_rate).abs() < 3.0,
                "{policy}: {} instead of {}",
                result.hit_rate,
                index.hit_rate
            ),
        }
    }
}

#[test]
fn shipped_traces_are_verified_through_two_tiers() {
    for name in ["mooncake_conversation", "mooncake_synthetic"] {
        let trace = shipped(name, 1500);
        let sizes = ByteReplayOptions::builder().bytes_per_block(5000).verify(true).build();
        let result = replay(&trace, &sizes);
        let share = |percent| u64::from(trace.unique_blocks()) * percent / 100;
        let (device, host) = (share(5), share(20));
        let capacity = BTreeMap::from([(Tier::Device, device), (Tier::Host, host)]);
        assert_eq!(result.capacity_blocks, capacity);
        // What the device holds the host holds, and both are told the same: each alone is an LRU
        // cache of its size.
        let alone = |capacity| {
            index_only(&trace, EvictionKind::Lru, capacity, |_| ControlFlow::Continue(())).unwrap()
        };
        assert_eq!(result.hits.device, alone(device).hit_blocks);
        assert_eq!(result.hit_blocks, alone(host).hit_blocks);
        assert!(result.hits.host > 0);
        assert_eq!((result.verified_blocks, result.verify_failures), (result.hit_blocks, 0));
        assert_eq!(result.bytes[&UP], result.hits.host * 5000);
        assert_eq!(result.timeline.len(), 100);
    }
}

#[test]
fn other_traces_are_verified_where_they_are_present() {
    let Some(folder) = std::env::var_os("DYNAMO_TEST_TRACES").map(PathBuf::from) else {
        println!("skipped: DYNAMO_TEST_TRACES names no folder with lmcache_agent_traces.jsonl.gz");
        return;
    };
    let trace = Trace::open(folder.join("lmcache_agent_traces.jsonl.gz"), None).unwrap();
    assert_eq!(trace.name(), "lmcache_agent_traces");
    let small = ByteReplayOptions::builder().bytes_per_block(512).verify(true).build();
    let result = replay(&trace, &small);
    assert!(result.hit_rate > 80.0, "{}", result.hit_rate);
    assert_eq!((result.verified_blocks, result.verify_failures), (result.hit_blocks, 0));
}

// ---- faults -----------------------------------------------------------------------------------

fn engine(name: &str, faults: Faults) -> Arc<FaultEngine> {
    Arc::new(FaultEngine::new(Arc::new(HostEngine::new(name, 2, 1 << 20)), faults))
}

/// A replay whose copies up and down misbehave, beside one whose copies do not.
fn replay_with(load: Faults, store: Faults) -> (ByteReplay, ByteReplay) {
    let trace = shipped("mooncake_synthetic", 200);
    let mut options = options(600, 3000);
    let good = replay(&trace, &options);
    let engines = [engine("load", load), engine("store", store)];
    let [load, store] = engines.clone();
    options.engines = Some(ReplayEngines { load, store });
    let result = replay(&trace, &options);
    assert!(engines.iter().map(|engine| engine.injected()).sum::<u64>() > 0);
    (result, good)
}

fn faults(corruption: Corruption) -> Faults {
    let mut faults = Faults::none(7);
    (faults.flips, faults.tears, faults.corruption) = (0.05, 0.05, corruption);
    faults
}

#[test]
fn bytes_that_change_on_their_way_up_are_misses() {
    let (result, good) = replay_with(faults(Corruption::InTransit), Faults::none(0));
    assert_eq!(result.verify_failures, 0);
    assert!(result.failures[&UP]["verification"] > 0);
    assert!(result.hit_blocks < good.hit_blocks);
}

#[test]
fn bytes_that_change_where_they_rest_below_are_misses() {
    let (result, good) = replay_with(Faults::none(0), faults(Corruption::AtRest));
    assert_eq!(result.verify_failures, 0);
    assert!(result.failures[&UP]["verification"] > 0);
    assert!(result.hit_blocks < good.hit_blocks);
}

#[test]
fn bytes_that_change_after_they_were_verified_are_found_and_are_no_hits() {
    let (result, good) = replay_with(faults(Corruption::AtRest), Faults::none(0));
    assert!(result.verify_failures > 0);
    assert_eq!(result.verified_blocks, result.hit_blocks + result.verify_failures);
    assert!(result.hit_blocks < good.hit_blocks);
}

#[test]
fn a_source_that_was_not_final_is_found_and_is_no_hit() {
    let (result, _) = replay_with(Faults::none(0), faults(Corruption::InTransit));
    assert!(result.verify_failures > 0);
    assert_eq!(result.verified_blocks, result.hit_blocks + result.verify_failures);
}

#[test]
fn copies_that_fail_are_misses() {
    let failing = Faults { errors: 0.1, ..Faults::none(3) };
    let (result, good) = replay_with(failing.clone(), failing);
    assert_eq!(result.verify_failures, 0);
    assert!(result.failures[&UP]["other"] > 0 && result.failures[&DOWN]["other"] > 0);
    assert!(result.hit_blocks < good.hit_blocks);
}

#[test]
fn a_device_tier_that_goes_bad_block_by_block_still_serves() {
    // Every load is corrupted after its verification, so every slot that one lands in is lost.
    let turns: Vec<&[u64]> =
        (0..12).map(|i| if i % 2 == 0 { &[1, 2][..] } else { &[3, 4] }).collect();
    let mut options = options(2, 8);
    let load =
        engine("load", Faults { flips: 1.0, corruption: Corruption::AtRest, ..Faults::none(1) });
    let store = engine("store", Faults::none(1));
    options.engines = Some(ReplayEngines { load, store });
    let result = replay(&trace(&turns), &options);
    assert_eq!((result.hit_blocks, result.verify_failures), (0, 2));
}

// ---- refusals ---------------------------------------------------------------------------------

fn refusal(trace: &Trace, options: &ByteReplayOptions) -> ReplayError {
    with_bytes(trace, options, |_| ControlFlow::Continue(())).unwrap_err()
}

#[test]
fn a_share_of_a_small_trace_that_is_no_block_is_refused() {
    let small = trace(&[&[1, 2, 3]]);
    let message = refusal(&small, &ByteReplayOptions::default()).to_string();
    for word in ["device_blocks", "5%", "3 unique", "device_blocks 1"] {
        assert!(message.contains(word), "{message}");
    }
    let device = ByteReplayOptions::builder().device_blocks(Capacity::Blocks(1)).build();
    let message = refusal(&small, &device).to_string();
    assert!(message.contains("host_blocks") && message.contains("20%"), "{message}");
    assert!(matches!(refusal(&small, &options(0, 1)), ReplayError::NoDevice));
}

#[test]
fn tiers_that_do_not_fit_the_machine_are_refused_by_name() {
    let small = trace(&[&[1, 2, 3]]);
    let mut large = options(1, 1 << 20);
    large.bytes_per_block = 1 << 33;
    let error = refusal(&small, &large);
    assert!(
        matches!(&error, ReplayError::Manager(ManagerError::Storage { tier: Tier::Host, .. })),
        "{error}"
    );
    let message = refusal(&small, &options(1, u64::MAX)).to_string();
    assert!(message.contains("host"), "{message}");
}

#[test]
fn a_replay_ends_when_it_is_told_to() {
    let trace = shipped("mooncake_synthetic", 100);
    let mut calls = 0;
    let error = with_bytes(&trace, &options(1000, 1000), |progress| {
        calls += 1;
        assert_eq!(progress.total, 100);
        ControlFlow::Break(())
    });
    assert!(matches!(error, Err(ReplayError::Cancelled(_))));
    assert_eq!(calls, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever comes in whatever order: tiers never serve more than an endless cache would, every
    /// hit is good, and the same input gives the same figures.
    #[test]
    fn any_trace_is_served(
        prompts in prop::collection::vec((0_u64..6, 0_usize..9), 1..40),
        (device, host) in (1_u64..12, 0_u64..16),
        policy in prop::sample::select(EvictionKind::ALL),
    ) {
        // Prompts of one family share their beginning.
        let prompts: Vec<Vec<u64>> = prompts
            .iter()
            .map(|&(family, len)| (0..len as u64).map(|at| family / 2 * 100 + at + if at > 3 { family } else { 0 }).collect())
            .collect();
        let trace = trace(&prompts.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let mut options = options(device, host);
        options.policy = policy;
        options.bytes_per_block = 40;
        let result = replay(&trace, &options);
        let endless = index_only(&trace, policy, u64::MAX, |_| ControlFlow::Continue(())).unwrap();
        prop_assert!(result.hit_blocks <= endless.hit_blocks);
        prop_assert_eq!(result.verified_blocks, result.hit_blocks);
        prop_assert_eq!(result.verify_failures, 0);
        let again = replay(&trace, &options);
        prop_assert_eq!((result.hits, result.evictions), (again.hits, again.evictions));
    }
}
