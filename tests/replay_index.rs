//! Index-only replay gives the known hit rates; traces that cannot be replayed say why.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use dynamo_llm::block_manager::config::EvictionKind;
use dynamo_llm::block_manager::replay::{
    Capacity, IndexReplay, Progress, Trace, TraceFormat, TraceProblem, index_only, sweep,
};
use flate2::{Compression, write::GzEncoder};
use serde_json::json;

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/traces");

fn replay(trace: &Trace, policy: EvictionKind, capacity: u64) -> IndexReplay {
    index_only(trace, policy, capacity, |_| ControlFlow::Continue(())).unwrap()
}

/// Compares with the rows of the checked-in table that are about `trace`.
fn check_against_table(trace: &Trace, name_in_table: &str) {
    let table = include_str!("vectors/hit_rates.csv");
    let mut rows = 0;
    for row in table.lines().skip(1) {
        let [name, policy, share, capacity, expected] =
            *row.split(',').collect::<Vec<_>>().as_slice()
        else {
            panic!("{row:?}")
        };
        if name != name_in_table {
            continue;
        }
        rows += 1;
        let capacity: u64 = capacity.parse().unwrap();
        let percent: f64 = share.parse::<f64>().unwrap() * 100.0;
        let share: Capacity = format!("{percent:.1}%").parse().unwrap();
        assert_eq!(share.blocks(trace.unique_blocks()), capacity, "{row}");

        let policy: EvictionKind = policy.parse().unwrap();
        let point = replay(trace, policy, capacity);
        let expected: f64 = expected.parse().unwrap();
        match policy {
            // Exact, up to the four decimals of the table.
            EvictionKind::Lru | EvictionKind::Fifo => {
                assert!((point.hit_rate - expected).abs() < 6e-5, "{row}: {}", point.hit_rate);
            }
            // Details of an implementation move these a little.
            _ => assert!(point.hit_rate > expected - 0.5, "{row}: {}", point.hit_rate),
        }
    }
    assert_eq!(rows, 4 * 8);
}

#[test]
fn shipped_traces_give_the_known_hit_rates() {
    for name in ["mooncake_conversation", "mooncake_synthetic"] {
        let trace = Trace::open(Path::new(SHIPPED).join(format!("{name}.jsonl")), None).unwrap();
        assert_eq!(trace.name(), name);
        check_against_table(&trace, name);
    }
}

#[test]
fn agents_trace_gives_the_known_hit_rates() {
    let folder = std::env::var_os("DYNAMO_TEST_TRACES").map(PathBuf::from);
    let path = folder.map(|folder| folder.join("lmcache_agent_traces.jsonl.gz"));
    let Some(path) = path.filter(|path| path.exists()) else {
        println!("skipped: DYNAMO_TEST_TRACES names no folder with lmcache_agent_traces.jsonl.gz");
        return;
    };
    let trace = Trace::open(path, None).unwrap();
    assert_eq!((trace.name(), trace.len()), ("lmcache_agent_traces", 1619));
    check_against_table(&trace, "lmcache_agents");
}

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }
}

fn gzip(content: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn ids(trace: &Trace) -> Vec<Vec<u64>> {
    trace
        .requests()
        .map(|request| request.blocks.iter().map(|&b| trace.block_id(b).unwrap()).collect())
        .collect()
}

#[test]
fn formats_and_compression_are_told_apart_by_content() {
    let files = Files::new();
    let mooncake = r#"
{"timestamp": 2.5, "hash_ids": [7, 18446744073709551615]}

{"timestamp": 1, "input_length": 3, "hash_ids": []}
{"timestamp": 2.5, "hash_ids": [7]}"#;
    let lmcache = r#"{"timestamp":2500,"h":[[7,1],[18446744073709551615,1]]}
{"timestamp":1000,"h":[]}
{"timestamp":2500,"h":[[7,1],[9,0]]}
"#;
    for (file, name, content) in [
        ("a.jsonl", "a", mooncake.as_bytes().to_vec()),
        // Plain in spite of its name, and the other way round.
        ("b.jsonl.gz", "b", lmcache.as_bytes().to_vec()),
        ("c", "c", gzip(mooncake)),
        ("d.jsonl", "d", gzip(lmcache)),
    ] {
        let trace = Trace::open(files.write(file, content), None).unwrap();
        assert_eq!(trace.name(), name);
        assert_eq!(ids(&trace), [vec![], vec![7, u64::MAX], vec![7]], "{file}");
        let times: Vec<i64> = trace.requests().map(|request| request.timestamp_us).collect();
        assert_eq!(times, [1000, 2500, 2500]);
        assert_eq!((trace.blocks(), trace.unique_blocks(), trace.block_id(2)), (3, 2, None));
        let cut = trace.limited(1);
        assert_eq!((cut.len(), cut.blocks(), cut.unique_blocks()), (1, 0, 0));
    }
}

#[test]
fn unusable_traces_name_file_line_and_reason() {
    let files = Files::new();
    let good = r#"{"timestamp":0,"hash_ids":[1]}"#;
    let mut cut = gzip(&good.repeat(100));
    cut.truncate(cut.len() / 2);
    for (content, line, reason) in [
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,3\n".into(), 1, "only request lengths"),
        (r#"{"timestamp":0,"input_length":5}"#.into(), 1, "only request lengths"),
        (r#"{"prompt":"x"}"#.into(), 1, "no known format"),
        ("\u{0}\u{1}".into(), 1, "no known format"),
        (format!("{good}\n{{\"timestamp\":0}}"), 2, "missing field `hash_ids`"),
        (format!("{good}\n\n{{\"timestamp\":0,\"hash_ids\":[-1]}}"), 3, "integer `-1`"),
        (format!("{good}\nnot json"), 2, "column"),
        (r#"{"timestamp":0,"h":[[0,1000000000000]]}"#.into(), 1, "more than 4194304 blocks"),
        (r#"{"timestamp":0,"h":[[0,4194304],[0,1]]}"#.into(), 1, "more than 4194304 blocks"),
        (r#"{"timestamp":0,"h":[[2,18446744073709551615]]}"#.into(), 1, "largest 64-bit id"),
        (format!("{good}\n{}", " ".repeat((64 << 20) + 1)), 2, "longer than"),
    ] {
        let path = files.write("bad.jsonl", content);
        let error = Trace::open(&path, None).unwrap_err();
        let message = error.to_string();
        assert!(message.contains(path.to_str().unwrap()) && message.contains(reason), "{message}");
        assert_eq!(error.line, Some(line), "{message}");
    }
    let error = Trace::open(files.write("cut.jsonl.gz", cut), None).unwrap_err();
    assert!(matches!(error.problem, TraceProblem::Gzip(_)), "{error}");
    let error = Trace::open(files.0.path().join("absent"), None).unwrap_err();
    assert!(matches!(error.problem, TraceProblem::Io(_)) && error.line.is_none(), "{error}");
    assert!(Trace::open(files.0.path(), None).is_err());
}

#[test]
fn a_stated_format_is_not_questioned() {
    let files = Files::new();
    let path = files.write("t.jsonl", r#"{"timestamp":0,"h":[[0,2]],"hash_ids":[5]}"#);
    let stated = |format: &str| Trace::open(&path, Some(format.parse().unwrap())).unwrap();
    assert_eq!(ids(&stated("lmcache")), [[0, 1]]);
    assert_eq!(ids(&stated("Mooncake")), [[5]]);
    let lengths = files.write("l.jsonl", r#"{"timestamp":0,"input_length":5}"#);
    let error = Trace::open(lengths, Some(TraceFormat::Mooncake)).unwrap_err();
    assert!(matches!(error.problem, TraceProblem::Malformed { .. }), "{error}");

    let empty = files.write("e.jsonl", "\n");
    let problem = Trace::open(&empty, None).unwrap_err().problem;
    assert!(matches!(problem, TraceProblem::UnknownFormat));
    let empty = Trace::open(empty, Some(TraceFormat::Lmcache)).unwrap();
    assert!(empty.is_empty() && replay(&empty, EvictionKind::Lru, 5).hit_rate == 0.0);
    assert!("csv".parse::<TraceFormat>().unwrap_err().to_string().contains("\"csv\""));
}

fn small_trace(files: &Files) -> Trace {
    let lines = (0..2000).map(|n| format!("{{\"timestamp\":{n},\"h\":[[0,3],[{n},4]]}}\n"));
    Trace::open(files.write("small.jsonl", lines.collect::<String>()), None).unwrap()
}

#[test]
fn any_capacity_will_do() {
    let trace = small_trace(&Files::new());
    for &policy in EvictionKind::ALL {
        assert_eq!(replay(&trace, policy, 0).hit_blocks, 0);
        let all = replay(&trace, policy, u64::from(trace.unique_blocks()));
        let more = replay(&trace, policy, u64::MAX);
        assert_eq!((all.hit_blocks, more.capacity_blocks), (more.hit_blocks, u64::MAX));
        assert!(replay(&trace, policy, 1).hit_blocks <= all.hit_blocks);
    }
}

#[test]
fn reports_in_the_agreed_keys() {
    let trace = small_trace(&Files::new());
    let value = serde_json::to_value(replay(&trace, EvictionKind::S3fifo, 9)).unwrap();
    assert_eq!((&value["trace"], &value["policy"]), (&json!("small"), &json!("s3fifo")));
    assert_eq!(value["capacity_blocks"], 9);
    assert_eq!(value["unique_blocks"], trace.unique_blocks());
    assert_eq!(value["blocks"], trace.blocks());
    assert!(value["hit_blocks"].is_u64() && value["hit_rate"].is_f64());
    assert!(value["seconds"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_sweep_covers_all_points_and_can_be_cancelled() {
    let trace = small_trace(&Files::new());
    let total = 4 * 2000;
    let mut last = None;
    let points = sweep(&trace, &[5, 50], &[EvictionKind::Arc, EvictionKind::Lru], |progress| {
        assert_eq!(progress.total, total);
        assert!(last < Some(progress.done), "{last:?}");
        last = Some(progress.done);
        ControlFlow::Continue(())
    });
    assert_eq!(last, Some(total));
    let points: Vec<(EvictionKind, u64)> =
        points.unwrap().iter().map(|point| (point.policy, point.capacity_blocks)).collect();
    let (arc, lru) = (EvictionKind::Arc, EvictionKind::Lru);
    assert_eq!(points, [(arc, 5), (arc, 50), (lru, 5), (lru, 50)]);

    let stop = |_: Progress| ControlFlow::Break(());
    let cancelled = sweep(&trace, &[5], EvictionKind::ALL, stop).unwrap_err();
    assert!(cancelled.done <= cancelled.total && cancelled.to_string().contains("cancelled"));
    assert!(index_only(&trace, lru, 5, stop).is_err());
}
