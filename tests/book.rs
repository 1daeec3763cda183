//! The book keeps its word: what is listed in it is generated from the code, every chapter with
//! Rust in it is a documentation test, and README's program is one that runs.
//!
//! Lists stand between `<!-- begin: NAME -->` and `<!-- end: NAME -->`. After a change,
//! `DYNAMO_TEST_UPDATE=1 cargo test --test book` writes them anew.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use dynamo_llm::block_manager::{
    EvictionKind, KvBlockManager, KvBlockManagerConfig,
    config::Config,
    replay::{self, Trace},
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// Holds the list `name` of a chapter against what it should be.
fn check(chapter: &str, name: &str, list: &str) {
    let path = format!("book/src/{chapter}");
    let text = read(&path);
    let (begin, end) = (format!("<!-- begin: {name} -->\n"), format!("<!-- end: {name} -->"));
    let (before, rest) = text.split_once(&begin).unwrap();
    let (found, after) = rest.split_once(&end).unwrap();
    if std::env::var_os("DYNAMO_TEST_UPDATE").is_some() {
        fs::write(root().join(&path), format!("{before}{begin}{list}{end}{after}")).unwrap();
    } else {
        assert!(
            found == list,
            "{path} is behind the code: DYNAMO_TEST_UPDATE=1 cargo test --test book"
        );
    }
}

#[test]
fn every_setting_is_in_the_reference() {
    let default = Config::default();
    let defaults: BTreeMap<_, _> =
        default.effective().into_iter().map(|it| (it.field, it.value.to_string())).collect();
    let mut list = String::new();
    let mut section = None;
    for field in Config::fields() {
        let this = field.path.split_once('.').map_or("common", |(section, _)| section);
        if section != Some(this) {
            section = Some(this);
            write!(list, "\n## Settings: {this}\n\n{SETTINGS}").unwrap();
        }
        let default = match defaults.get(field.path) {
            Some(value) => format!("`{}`", value.trim_matches('"')),
            None if matches!(field.path, "device.blocks" | "host.blocks") => {
                "fits the machine".to_owned()
            }
            None => String::new(),
        };
        let (path, variable, doc) = (field.path, field.variable, field.doc);
        let example = field.example.trim_matches('"');
        writeln!(list, "| `{path}` | `{variable}` | {doc} | {default} | `{example}` |").unwrap();
    }
    check("reference/configuration.md", "settings", &format!("{list}\n"));
}

const SETTINGS: &str = "\
| setting | variable | meaning | default | example |
|---|---|---|---|---|
";

#[test]
fn every_metric_is_listed() {
    let settings = "model = { num_layers = 2, page_size = 16, inner_dim = 64 }
                    device = { blocks = 8 }
                    host = { blocks = 8 }";
    let config = KvBlockManagerConfig::from_toml(settings).unwrap();
    let text = KvBlockManager::new_blocking(config).unwrap().status().to_openmetrics();

    let mut list = String::from("\n| family | kind | labels | meaning |\n|---|---|---|---|\n");
    let (mut family, mut kind, mut meaning) = ("", "", "");
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match [words.next(), words.next(), words.next(), words.next()] {
            [Some("#"), Some("TYPE"), Some(name), Some(of)] => (family, kind) = (name, of),
            [Some("#"), Some("HELP"), Some(_), Some(help)] => meaning = help,
            // The first sample of a family shows its labels.
            [Some(sample), ..] if sample.starts_with(family) && !meaning.is_empty() => {
                let labels = sample.split_once('{').unwrap().1.split_once('}').unwrap().0;
                let labels = labels.split(',').map(|label| label.split_once('=').unwrap().0);
                let labels = labels.collect::<Vec<_>>().join(", ");
                writeln!(list, "| `{family}` | {kind} | {labels} | {meaning} |").unwrap();
                meaning = "";
            }
            _ => {}
        }
    }
    check("core/events_metrics.md", "metrics", &format!("{list}\n"));
}

#[test]
fn hit_rates_are_those_of_the_shipped_traces() {
    let policies = EvictionKind::ALL;
    let header: Vec<_> = policies.iter().map(|policy| format!("`{policy}`")).collect();
    let rule = "---:|".repeat(policies.len());
    let mut list = format!("\n| trace | capacity | {} |\n|---|---:|{rule}\n", header.join(" | "));
    for name in ["mooncake_conversation", "mooncake_synthetic"] {
        let path = root().join(format!("examples/traces/{name}.jsonl"));
        let trace = Trace::open(path, None).unwrap();
        for percent in [1, 5, 10, 20, 50] {
            let capacity = u64::from(trace.unique_blocks()) * percent / 100;
            let go_on = |_| ControlFlow::Continue(());
            let points = replay::sweep(&trace, &[capacity], policies, go_on).unwrap();
            let rates: Vec<_> =
                points.iter().map(|point| format!("{:.2}", point.hit_rate)).collect();
            writeln!(list, "| {name} | {percent}% | {} |", rates.join(" | ")).unwrap();
        }
    }
    check("advanced/performance.md", "hit rates", &format!("{list}\n"));
}

#[test]
fn every_public_name_is_listed() {
    let face = read("rust/src/block_manager.rs");
    let (top, modules) = face.split_at(face.find("\n/// ").unwrap());
    let mut list = format!("\n{}\n", names(top));
    for module in modules.split("\n}\n") {
        let Some((docs, rest)) = module.split_once("\npub mod ") else { continue };
        let (name, body) = rest.split_once(" {").unwrap();
        let docs = docs.trim().trim_start_matches("/// ");
        writeln!(list, "\n### `{name}`\n\n{docs}\n\n{}", names(body)).unwrap();
    }
    check("reference/rust.md", "names", &format!("{list}\n"));
}

/// The names that the `pub use` of a piece of source give out, in alphabetical order.
fn names(source: &str) -> String {
    let mut names = Vec::new();
    for statement in source.split("pub use ").skip(1) {
        let path = statement.split_once(';').unwrap().0;
        let given = match path.split_once('{') {
            Some((_, list)) => list.trim_end_matches('}'),
            None => path.rsplit("::").next().unwrap(),
        };
        let given = given.split(',').map(|name| name.rsplit(" as ").next().unwrap().trim());
        names.extend(given.filter(|name| !name.is_empty()));
    }
    names.sort_by_key(|name| name.to_lowercase());
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" ")
}

/// All chapters, by path below `book/src`.
fn chapters(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.extension() {
            None => chapters(&path, found),
            Some(ending) if ending == "md" => found.push(path),
            Some(_) => {}
        }
    }
}

#[test]
fn every_chapter_with_rust_in_it_is_a_documentation_test() {
    let source = read("rust/src/lib.rs");
    let folder = root().join("book/src");
    let mut found = Vec::new();
    chapters(&folder, &mut found);
    for path in found {
        let chapter = path.strip_prefix(&folder).unwrap().to_str().unwrap().to_owned();
        let has_rust = fs::read_to_string(&path).unwrap().contains("\n```rust");
        let is_tested = source.contains(&format!("\"{chapter}\""));
        assert_eq!(has_rust, is_tested, "{chapter} and the list in rust/src/lib.rs");
    }
}

#[test]
fn the_program_in_readme_is_the_one_that_runs_below() {
    let readme = read("README.md");
    let (program, _) = readme.split_once("```rust\n").unwrap().1.split_once("```").unwrap();
    let below = read("tests/book.rs").replace("\n    ", "\n");
    assert!(below.contains(program), "{program}");
}

#[rustfmt::skip]
#[tokio::test]
async fn the_program_in_readme_runs() -> Result<(), Box<dyn std::error::Error>> {
    use dynamo_llm::block_manager::{
        KvBlockManager, KvBlockManagerConfig, KvManagerModelConfig, KvManagerRuntimeConfig
    };
    let config = KvBlockManagerConfig::builder()
        .runtime(KvManagerRuntimeConfig::builder().worker_id(0).build())
        .model(KvManagerModelConfig::builder().num_layers(32).page_size(16).inner_dim(4096).build())
        .build()?;
    let block_manager = KvBlockManager::new(config).await?;
    assert!(block_manager.device().is_some() && block_manager.host().is_some());
    Ok(())
}
