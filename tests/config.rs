//! Configuration: layers, refusals, and what validation says.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, fs};

use dynamo_llm::{
    block_manager::{
        KvManagerModelConfig, KvManagerRuntimeConfig,
        config::{
            Capacity, Config, ConfigError, ConfigLayers, DriveConfig, EvictionKind, Finding,
            LayoutKind, Severity, Source, Tier,
        },
        layout::BlockLayout,
    },
    common::dtype::DType,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// The findings of a refusal.
fn refused<T: std::fmt::Debug>(outcome: Result<T, ConfigError>) -> Vec<Finding> {
    match outcome {
        Err(ConfigError::Invalid { findings }) => findings,
        other => panic!("expected a refusal, found {other:?}"),
    }
}

fn fields(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.field.as_str()).collect()
}

/// A configuration whose block takes 256 KiB on the device and on the host.
fn small() -> Config {
    let mut config = Config::default();
    config.model =
        KvManagerModelConfig::builder().num_layers(4).page_size(16).inner_dim(1024).build();
    config
}

const SLOT: u64 = 4 * 2 * 16 * 1024 * 2;

#[test]
fn builders_have_the_documented_defaults() {
    let model = KvManagerModelConfig::builder().num_layers(1).page_size(2).inner_dim(3).build();
    assert_eq!((model.outer_dim, model.dtype, &model.name), (2, DType::FP16, &None));
    assert_eq!(model.block_bytes(), Some(24));
    let huge = KvManagerModelConfig { num_layers: usize::MAX, ..model };
    assert_eq!(huge.block_bytes(), None);
    let named = KvManagerModelConfig::builder()
        .num_layers(1)
        .page_size(1)
        .inner_dim(1)
        .name("m")
        .dtype(DType::FP8)
        .build();
    assert_eq!(named.name.as_deref(), Some("m"));

    let mut config = Config::default();
    config.runtime = KvManagerRuntimeConfig::builder().worker_id(u64::MAX).enable_nixl().build();
    let findings = refused(config.validate());
    assert_eq!(fields(&findings), ["runtime.nixl"]);
    assert!(findings[0].message.contains("not part of this version"));
    config.runtime = KvManagerRuntimeConfig::builder().enable_nixl().disable_nixl().build();
    assert_eq!(config.validate().unwrap(), []);
}

#[test]
fn a_missing_or_malformed_file_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("absent.toml");
    for outcome in
        [Config::from_toml_file(&path), Config::from_env([("DYNAMO_LLM_CONFIG", path.as_os_str())])]
    {
        let error = outcome.unwrap_err();
        assert!(matches!(error, ConfigError::File { .. }));
        assert!(error.to_string().contains("absent.toml"), "{error}");
    }
    fs::write(&path, "host = [").unwrap();
    let error = Config::from_toml_file(&path).unwrap_err();
    assert!(matches!(error, ConfigError::Syntax { .. }), "{error}");
}

#[test]
fn a_misspelt_name_is_refused_in_files_and_noticed_in_the_environment() {
    for (tree, nearest) in [
        (json!({"host": {"block": 1}}), "host.blocks"),
        (json!({"hots": {"blocks": 1}}), "host"),
        (json!({"num_layers": 1}), "model.num_layers"),
        (json!({"evicton": null}), "eviction"),
    ] {
        let findings = refused(Config::from_value(tree.clone()));
        assert!(findings[0].remedy.contains(&format!("{nearest:?}")), "{tree} {findings:?}");
    }

    let variables = [
        ("DYNAMO_LLM_HOST_BLOKCS", "1"),
        ("dynamo_llm_strict", "1"),
        ("DYNAMO_LLM_EVICTION", ""),
        ("DYNAMO_TEST_CUDA", "real"),
        ("PATH", "/bin"),
    ];
    let config = Config::from_env(variables).unwrap();
    let findings = config.validate().unwrap();
    for (variable, remedy) in [
        ("DYNAMO_LLM_HOST_BLOKCS", "DYNAMO_LLM_HOST_BLOCKS"),
        ("dynamo_llm_strict", "DYNAMO_LLM_STRICT"),
        ("DYNAMO_LLM_EVICTION", "unset"),
    ] {
        let finding = findings.iter().find(|finding| finding.field == variable).unwrap();
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.remedy.contains(remedy), "{finding}");
    }
    assert!(!findings.iter().any(|f| f.field.contains("TEST") || f.field == "PATH"));

    let strict = Config::from_env(variables.into_iter().chain([("DYNAMO_LLM_STRICT", "true")]));
    assert!(fields(&refused(strict.unwrap().validate())).contains(&"DYNAMO_LLM_HOST_BLOKCS"));
}

#[test]
fn the_higher_layer_wins_and_every_setting_knows_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    fs::write(&path, "strict = true\n[host]\nblocks = 5\nlayout = 'paged'\n[device]\nbytes = 0")
        .unwrap();
    let mut config = ConfigLayers::new()
        .arguments(json!({"eviction": "s3fifo", "offload": null}))
        .environment([
            ("DYNAMO_LLM_CONFIG", path.to_str().unwrap()),
            ("DYNAMO_LLM_HOST_BYTES", "1 GiB"),
            ("DYNAMO_LLM_EVICTION", "arc"),
            ("DYNAMO_LLM_MODEL_NAME", "123"),
        ])
        .resolve()
        .unwrap();
    config.transfer.deadline_ms = 7;

    assert_eq!(
        config.host.capacity,
        Capacity::Bytes(1 << 30),
        "bytes replace a lower layer's blocks"
    );
    assert_eq!(config.model.name.as_deref(), Some("123"));
    let sources: BTreeMap<&str, Source> =
        config.effective().into_iter().map(|e| (e.field, e.source)).collect();
    assert_eq!(sources["host.bytes"], Source::Environment("DYNAMO_LLM_HOST_BYTES".into()));
    assert!(!sources.contains_key("host.blocks"));
    assert_eq!(sources["eviction"], Source::Argument);
    assert_eq!(sources["strict"], Source::File(path.clone()));
    assert_eq!(sources["device.bytes"], Source::File(path));
    assert_eq!(sources["transfer.deadline_ms"], Source::Argument);
    assert_eq!(sources["offload.policy"], Source::Default);
    let listed: Vec<String> = config.effective().iter().map(ToString::to_string).collect();
    assert!(listed.contains(&"eviction = \"s3fifo\" (argument)".to_owned()), "{listed:#?}");
}

#[test]
fn a_file_named_by_the_program_replaces_the_one_in_the_environment() {
    let config = ConfigLayers::new()
        .environment([("DYNAMO_LLM_CONFIG", "/absent.toml")])
        .toml("eviction = 'fifo'")
        .resolve()
        .unwrap();
    assert_eq!(config.eviction_of(Tier::Host), EvictionKind::Fifo);
    assert!(fields(&config.validate().unwrap()).contains(&"DYNAMO_LLM_CONFIG"));
}

#[test]
fn several_drives_are_a_list_in_every_layer() {
    let list = r#"[{ dir = "/a", bytes = "2 GiB" }, { dir = "/b", blocks = 5 }]"#;
    let from_file = Config::from_toml_str(&format!("disk.drives = {list}")).unwrap();
    assert_eq!(from_file.disk.drives.len(), 2);
    assert_eq!(from_file.disk.drives[0], DriveConfig::new("/a", Capacity::Bytes(2 << 30)));
    let tables = "[[disk]]\ndir = '/a'\nbytes = '2 GiB'\n[[disk]]\ndir = '/b'\nblocks = 5";
    assert_eq!(Config::from_toml_str(tables).unwrap(), from_file);
    let short = json!({"disk": [{"dir": "/a", "bytes": "2 GiB"}, {"dir": "/b", "blocks": 5}]});
    assert_eq!(Config::from_value(short).unwrap(), from_file);
    let from_env = Config::from_env([("DYNAMO_LLM_DISK_DRIVES", list)]).unwrap();
    assert_eq!(from_env, from_file);
    assert_eq!(Config::from_toml_str(&from_file.to_toml()).unwrap(), from_file);

    let text = refused(Config::from_value(json!({"disk": [{"dir": "/a"}]})))[0].to_string();
    assert!(text.contains("disk.drives") && text.contains("drive 1: bytes"), "{text}");
    let text = refused(Config::from_value(json!({"host": []})))[0].to_string();
    assert!(text.contains("host") && text.contains("expected a table"), "{text}");
}

#[test]
fn parts_that_are_not_built_are_refused_by_name() {
    for name in ["remote", "nixl"] {
        let variable = format!("DYNAMO_LLM_{}_DIR", name.to_uppercase());
        for findings in [
            refused(Config::from_value(json!({name: {"dir": "/x"}}))),
            refused(Config::from_value(json!({name: false}))),
            refused(Config::from_env([(variable, "/x")])),
        ] {
            let text = findings[0].to_string();
            assert_eq!(findings.len(), 1);
            assert!(
                text.contains(&format!("{name} is not part of this version; remove it")),
                "{text}"
            );
        }
        assert!(Config::from_value(json!({name: null})).is_ok(), "not stated");
    }
    let findings = refused(Config::from_value(json!({"offload": {"policy": "write_back"}})));
    assert!(findings[0].message.contains("write_through, manual"), "{findings:?}");
}

#[test]
fn every_problem_is_named_at_once() {
    let findings = refused(Config::from_value(json!({
        "model": {"num_layers": 0, "page_size": "many", "dtype": "fp17", "inner_dim": -1},
        "host": {"blocks": 1, "bytes": "1 GiB", "layout": 3},
        "device": 7,
        "offload": {"queue_blocks": 0},
        "transfer": {"threads": 1.5, "deadline_ms": u64::MAX},
        "strict": "maybe",
        "colour": "blue",
    })));
    let mut named = fields(&findings);
    named.sort_unstable();
    assert_eq!(
        named,
        [
            "colour",
            "device",
            "host.bytes",
            "host.layout",
            "model.dtype",
            "model.inner_dim",
            "model.num_layers",
            "model.page_size",
            "offload.queue_blocks",
            "strict",
            "transfer.deadline_ms",
            "transfer.threads",
        ]
    );
    for finding in &findings {
        assert!(!finding.message.is_empty() && !finding.remedy.is_empty(), "{finding}");
    }
    let error = ConfigError::Invalid { findings };
    assert!(error.to_string().contains("12 problems") && error.to_string().contains("\"many\""));
    assert!(refused(Config::from_value(json!([1])))[0].message.contains("table"));
}

#[test]
fn geometry_out_of_range_is_refused() {
    let mut config = small();
    config.model = KvManagerModelConfig::builder()
        .num_layers(129)
        .outer_dim(3)
        .page_size(usize::MAX)
        .inner_dim(32769)
        .name(" ")
        .build();
    assert_eq!(
        fields(&refused(config.validate())),
        ["model.num_layers", "model.outer_dim", "model.page_size", "model.inner_dim", "model.name"]
    );
}

#[test]
fn a_capacity_of_zero_is_off_and_one_below_a_block_is_refused() {
    let mut config = small();
    for off in [Capacity::Blocks(0), Capacity::Bytes(0)] {
        config.host.capacity = off;
        assert_eq!(config.validate().unwrap(), []);
        assert_eq!(config.blocks(Tier::Host), Some(0));
    }
    config.host.prefault = true;
    assert_eq!(fields(&config.validate().unwrap()), ["host.prefault"], "without effect");
    config.device.capacity = Capacity::Bytes(0);
    assert!(refused(config.validate())[0].message.contains("every tier is off"));

    let mut config = small();
    config.host.capacity = Capacity::Bytes(SLOT - 1);
    let findings = refused(config.validate());
    assert_eq!(fields(&findings), ["host.bytes"]);
    assert!(findings[0].remedy.contains(&SLOT.to_string()), "{findings:?}");

    config.host.capacity = Capacity::Bytes(3 * SLOT + 1);
    let findings = config.validate().unwrap();
    assert_eq!(findings[0].severity, Severity::Info);
    assert!(findings[0].message.contains("3 blocks"), "{findings:?}");
    assert_eq!(config.blocks(Tier::Host), Some(3));

    for huge in [Capacity::Blocks(usize::MAX), Capacity::Bytes(u64::MAX)] {
        config.host.capacity = huge;
        assert!(refused(config.validate())[0].message.contains("more than a tier can hold"));
    }
}

#[test]
fn a_paged_slot_is_padded_to_the_page() {
    assert_eq!(LayoutKind::Paged.slot_bytes(1), Some(4096));
    assert_eq!(LayoutKind::Paged.slot_bytes(usize::MAX), None);
    assert_eq!(LayoutKind::LayerSeparate.slot_bytes(1), Some(1));
    let mut config = small();
    config.model = KvManagerModelConfig::builder().num_layers(1).page_size(1).inner_dim(1).build();
    config.device.capacity = Capacity::Bytes(4096);
    config.host.capacity = Capacity::Bytes(4096);
    assert_eq!(config.blocks(Tier::Device), Some(1024));
    assert_eq!(config.blocks(Tier::Host), Some(1));
}

#[test]
fn a_capacity_in_bytes_is_what_the_layout_takes() {
    let model = KvManagerModelConfig::builder().num_layers(3).page_size(5).inner_dim(7).build();
    for &kind in LayoutKind::ALL {
        let slot = kind.slot_bytes(model.block_bytes().unwrap()).unwrap();
        let layout = BlockLayout::new(model.layout(9), &kind.into()).unwrap();
        assert_eq!(layout.storage_sizes().iter().sum::<usize>(), 9 * slot, "{kind}");
    }
}

#[test]
fn a_host_smaller_than_the_device_is_worth_a_warning() {
    let mut config = small();
    config.device.capacity = Capacity::Blocks(100);
    config.host.capacity = Capacity::Blocks(20);
    let findings = config.validate().unwrap();
    assert_eq!(findings[0].severity, Severity::Warning);
    let text = findings[0].to_string();
    assert!(text.contains("host.blocks = 20") && text.contains("100"), "{text}");

    config.strict = true;
    assert_eq!(fields(&refused(config.validate())), ["host.blocks"]);
    config.host.capacity = Capacity::Blocks(100);
    assert_eq!(config.validate().unwrap(), []);
}

#[test]
fn a_disk_is_held_against_the_tier_above_it() {
    let mut config = small();
    config.disk.dir = Some("cache".to_owned());
    let mut warned = |device, host, disk| {
        config.device.capacity = Capacity::Blocks(device);
        config.host.capacity = Capacity::Blocks(host);
        config.disk.capacity = Capacity::Blocks(disk);
        let findings = config.validate().unwrap();
        findings.into_iter().map(|finding| finding.field).collect::<Vec<_>>()
    };
    assert_eq!(warned(100, 20, 10), ["host.blocks", "disk.blocks"]);
    assert_eq!(warned(10, 20, 30), [""; 0]);
    assert_eq!(warned(100, 0, 10), ["disk.blocks"]);
}

#[test]
fn a_geometry_that_nobody_stated_is_noticed() {
    let config = Config::from_value(json!({"model": {"num_layers": 8}})).unwrap();
    let findings = config.validate().unwrap();
    assert_eq!(fields(&findings), ["model.page_size, model.inner_dim"]);
    assert!(findings[0].message.contains("8 layers"), "{findings:?}");
}

#[test]
fn the_reference_covers_what_is_listed() {
    let known: Vec<_> = Config::fields().collect();
    assert!(known.iter().all(|field| field.doc.ends_with('.')));
    assert!(known.iter().any(|field| field.variable == "DYNAMO_LLM_MODEL_NUM_LAYERS"));
    for setting in Config::default().effective() {
        assert!(known.iter().any(|field| field.path == setting.field));
    }
}

/// Some settings and two values of each, as text.
const SAMPLES: [(&str, &str, [&str; 2]); 6] = [
    ("host.blocks", "DYNAMO_LLM_HOST_BLOCKS", ["7", "0"]),
    ("eviction", "DYNAMO_LLM_EVICTION", ["\"arc\"", "\"fifo\""]),
    ("strict", "DYNAMO_LLM_STRICT", ["true", "false"]),
    ("transfer.threads", "DYNAMO_LLM_TRANSFER_THREADS", ["1", "2"]),
    ("model.page_size", "DYNAMO_LLM_MODEL_PAGE_SIZE", ["16", "32"]),
    ("runtime.worker_id", "DYNAMO_LLM_RUNTIME_WORKER_ID", ["0", "3"]),
];

type Choice = [Option<usize>; SAMPLES.len()];

fn stated(choice: &Choice) -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    SAMPLES
        .iter()
        .zip(*choice)
        .filter_map(|(&(path, variable, values), pick)| Some((path, variable, values[pick?])))
}

fn tree(choice: &Choice) -> Value {
    let mut root = Map::new();
    for (path, _, value) in stated(choice) {
        let value: Value = serde_json::from_str(value).unwrap();
        match path.split_once('.') {
            None => drop(root.insert(path.into(), value)),
            Some((section, key)) => root.entry(section).or_insert(json!({}))[key] = value,
        }
    }
    root.into()
}

fn choice() -> impl Strategy<Value = Choice> {
    prop::array::uniform(prop::option::of(0..2_usize))
}

/// Trees of names that are known in part, to some depth.
fn junk() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        Just(json!("9 TiB")),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        let name = prop_oneof![
            prop::sample::select(vec![
                "host",
                "device",
                "model",
                "blocks",
                "bytes",
                "disk",
                "strict",
                "num_layers",
                "",
            ])
            .prop_map(str::to_owned),
            "\\PC{0,8}",
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name, inner, 0..6)
                .prop_map(|table| Value::Object(table.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn precedence_is_that_of_a_chain_of_maps(
        file in choice(),
        env in choice(),
        argument in choice(),
    ) {
        let lines = stated(&file).map(|(path, _, value)| format!("{path} = {value}"));
        let text: Vec<String> = lines.collect();
        let variables =
            stated(&env).map(|(_, variable, value)| (variable, value.trim_matches('"')));
        let config = ConfigLayers::new()
            .arguments(tree(&argument))
            .environment(variables)
            .toml(&text.join("\n"))
            .resolve()
            .unwrap();
        let effective: BTreeMap<&str, (Value, Source)> =
            config.effective().into_iter().map(|e| (e.field, (e.value, e.source))).collect();
        for (index, (path, variable, values)) in SAMPLES.into_iter().enumerate() {
            let layers = [
                (argument[index], Source::Argument),
                (env[index], Source::Environment(variable.into())),
                (file[index], Source::File("(text)".into())),
            ];
            let winner =
                layers.into_iter().find_map(|(pick, source)| Some((values[pick?], source)));
            match winner {
                Some((value, source)) => {
                    let value: Value = serde_json::from_str(value).unwrap();
                    prop_assert_eq!(&effective[path], &(value, source));
                }
                None => {
                    prop_assert!(effective.get(path).is_none_or(|(_, s)| *s == Source::Default));
                }
            }
        }
    }

    #[test]
    fn toml_and_json_read_back_as_written(
        argument in choice(),
        bytes: Option<u64>,
        worker: u64,
        name in "\\PC{1,20}",
    ) {
        let mut config = Config::from_value(tree(&argument)).unwrap();
        if let Some(bytes) = bytes {
            config.host.capacity = Capacity::Bytes(bytes);
        }
        config.runtime.worker_id = worker;
        config.model.name = Some(name);
        prop_assert_eq!(&Config::from_toml_str(&config.to_toml()).unwrap(), &config);
        let json = serde_json::to_string(&config).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Config>(&json).unwrap(), &config);
    }

    #[test]
    fn junk_is_answered_and_never_panics(
        tree in junk(),
        text in "\\PC{0,60}",
        variable in "DYNAMO_LLM_[A-Z_é]{0,20}",
    ) {
        if let Ok(config) = Config::from_value(tree) {
            let _ = config.validate();
        }
        let _ = Config::from_toml_str(&text);
        if let Ok(config) = Config::from_env([(variable, text)]) {
            let _ = config.validate();
        }
    }

    #[test]
    fn any_numbers_validate_without_panic(
        geometry: [usize; 4],
        device: (bool, u64),
        host: (bool, u64),
        layout in prop::sample::select(LayoutKind::ALL),
    ) {
        let capacity = |(blocks, n): (bool, u64)| {
            if blocks { Capacity::Blocks(n as usize) } else { Capacity::Bytes(n) }
        };
        let mut config = Config::default();
        let [num_layers, outer_dim, page_size, inner_dim] = geometry;
        config.model = KvManagerModelConfig {
            num_layers,
            outer_dim,
            page_size,
            inner_dim,
            ..Default::default()
        };
        config.device.capacity = capacity(device);
        config.host.capacity = capacity(host);
        config.host.layout = layout;
        let _ = (config.validate(), config.effective(), config.to_toml());
    }
}
