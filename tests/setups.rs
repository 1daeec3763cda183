//! Which set-ups there are, which are refused, and how that is said.

#![allow(clippy::unwrap_used)]

mod rig;

use std::{error::Error, sync::Arc};

use dynamo_llm::block_manager::{
    EvictionKind, KvBlockManager, KvBlockManagerConfig, KvManagerLayoutConfig,
    KvManagerModelConfig, KvManagerRuntimeConfig, LayoutType, ManagerError, Tier,
    config::{Config, ConfigLayers, Severity},
    storage::{NullAllocator, Storage, SystemAllocator, SystemStorage},
};
use rig::PAGE;

fn model() -> KvManagerModelConfig {
    KvManagerModelConfig::builder().num_layers(2).page_size(PAGE).inner_dim(16).build()
}

fn tier(blocks: usize) -> KvManagerLayoutConfig {
    KvManagerLayoutConfig::builder().num_blocks(blocks).build()
}

/// A message and all that led to it.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Why there is no manager.
fn refusal(
    configure: impl FnOnce(
        dynamo_llm::block_manager::KvBlockManagerConfigBuilder,
    ) -> dynamo_llm::block_manager::KvBlockManagerConfigBuilder,
) -> String {
    let config = configure(KvBlockManagerConfig::builder().model(model())).build();
    let error = match config.and_then(KvBlockManager::new_blocking) {
        Err(error) => error,
        Ok(manager) => panic!("{manager:?} should have been refused"),
    };
    chain(&error)
}

#[test]
fn impossible_setups_are_refused_by_name_value_and_remedy() {
    let shaped = |layers, page, inner| {
        let model =
            KvManagerModelConfig::builder().num_layers(layers).page_size(page).inner_dim(inner);
        refusal(|builder| builder.model(model.build()))
    };
    for (message, parts) in [
        (shaped(0, 16, 64), ["model.num_layers", "= 0", "1 to 128"]),
        (shaped(2, 0, 64), ["model.page_size", "= 0", "1 to 1024"]),
        (shaped(2, 16, usize::MAX), ["model.inner_dim", "18446744073709551615", "1 to 32768"]),
        (
            refusal(|b| b.device_layout(tier(usize::MAX))),
            ["device.blocks", "18446744073709551615", "give at most"],
        ),
        (
            refusal(|b| b.host_layout(tier(u32::MAX as usize + 1))),
            ["host.blocks", "4294967296", "give at most"],
        ),
        (
            refusal(|b| b.device_layout(tier(0)).host_layout(tier(0))),
            ["device.blocks, host.blocks", "off", "give at least one"],
        ),
        (refusal(|b| b.without_device().host_layout(tier(0))), ["every tier", "off", "give"]),
        (
            // Numbered, but no machine holds so many.
            refusal(|b| b.device_layout(tier(1 << 29)).host_layout(tier(0))),
            ["device", "536870912", "available"],
        ),
        (refusal(|b| b.device_layout(tier(3 << 30))), ["device", "3221225472", "1073741824"]),
    ] {
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
    }
}

#[test]
fn every_problem_is_named_at_once() {
    let model = KvManagerModelConfig::builder().num_layers(0).page_size(0).inner_dim(1).build();
    let message = refusal(|builder| builder.model(model).device_layout(tier(usize::MAX)));
    for field in ["model.num_layers", "model.page_size"] {
        assert!(message.contains(field), "{message}");
    }
    let error = KvBlockManagerConfig::builder().device_layout(tier(4)).build().unwrap_err();
    assert!(error.to_string().contains("model"), "{error}");
}

#[test]
fn the_books_of_a_tier_without_bytes_must_fit_the_machine_too() {
    let allocator = Arc::new(NullAllocator);
    let null = KvManagerLayoutConfig::builder().num_blocks(1 << 30).allocator(allocator).build();
    let message = refusal(|builder| builder.device_layout(null).host_layout(tier(0)));
    assert!(message.contains("1073741824") && message.contains("available"), "{message}");
}

#[test]
fn live_objects_that_cannot_be_used_are_refused_by_name() {
    let storage =
        |bytes| -> Vec<Arc<dyn Storage>> { vec![Arc::new(SystemStorage::new(bytes).unwrap())] };
    let config = |num_blocks, storage| KvManagerLayoutConfig {
        num_blocks,
        storage,
        ..KvManagerLayoutConfig::default()
    };
    let allocated =
        |config| KvManagerLayoutConfig { allocator: Some(Arc::new(SystemAllocator)), ..config };
    let cases = [
        (allocated(config(Some(4), Some(storage(1 << 20)))), "storage and allocator"),
        (config(None, Some(storage(1 << 20))), "num_blocks"),
        (config(Some(0), Some(storage(1 << 20))), "the tier is off"),
        (allocated(config(Some(0), None)), "the tier is off"),
        (config(Some(4), Some(storage(100))), "of 100 bytes"),
        (config(Some(4), Some(Vec::new())), "storages: 0"),
    ];
    for (config, part) in cases {
        let message = refusal(|builder| builder.device_layout(config.clone()));
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
    // One storage serves one tier of one manager.
    let shared = storage(1 << 20);
    let both = config(Some(4), Some(shared));
    let message = refusal(|builder| builder.device_layout(both.clone()).host_layout(both.clone()));
    assert!(message.contains("its own"), "{message}");
    let first = KvBlockManagerConfig::builder()
        .model(model())
        .device_layout(both.clone())
        .host_layout(tier(8))
        .build()
        .and_then(KvBlockManager::new_blocking)
        .unwrap();
    let message = refusal(|builder| builder.device_layout(both.clone()));
    assert!(message.contains("its own"), "{message}");
    drop(first);
}

#[test]
fn a_tier_of_no_blocks_is_off_and_one_smaller_than_a_block_is_refused() {
    let manager = |toml: &str| {
        let model = "[model]\nnum_layers = 2\npage_size = 4\ninner_dim = 16\n";
        KvBlockManagerConfig::from_toml(&format!("{model}{toml}"))
            .and_then(KvBlockManager::new_blocking)
    };
    let off = manager("[device]\nblocks = 8\n[host]\nbytes = 0").unwrap();
    assert!(off.host().is_none() && off.device().is_some());
    assert!(matches!(off.offload(&[]).unwrap_err(), ManagerError::NoSuchTier { tier: Tier::Host }));
    let error = chain(&manager("[host]\nbytes = 100").unwrap_err());
    assert!(error.contains("host.bytes") && error.contains("4096"), "{error}");
    // Not a whole number of slots: rounded down, and said.
    let rounded = manager("[device]\nblocks = 1\n[host]\nbytes = 9000").unwrap();
    assert_eq!(rounded.host().unwrap().total_blocks(), 2);
    let finding = rounded.findings().iter().find(|finding| finding.field == "host.bytes").unwrap();
    assert!(finding.message.contains("rounded down to 2 blocks"), "{finding}");
}

#[test]
fn a_host_smaller_than_the_device_is_a_warning_with_numbers_or_an_error_under_strict() {
    let config = |strict: bool| {
        let mut settings = Config::default();
        settings.strict = strict;
        let builder = KvBlockManagerConfig::builder().settings(settings).model(model());
        builder.device_layout(tier(100)).host_layout(tier(20)).build()
    };
    let manager = KvBlockManager::new_blocking(config(false).unwrap()).unwrap();
    let finding = manager.findings().iter().find(|f| f.field == "host.blocks").unwrap();
    assert_eq!((finding.severity, &*finding.value), (Severity::Warning, "20"));
    assert!(finding.message.contains("100") && finding.remedy.contains("100"));
    let error = config(true).unwrap_err().to_string();
    assert!(error.contains("host.blocks = 20") && error.contains("100"), "{error}");
    // Also where only one of the two was stated.
    let config = KvBlockManagerConfig::builder().model(model()).device_layout(tier(1 << 17));
    let manager = KvBlockManager::new_blocking(config.build().unwrap()).unwrap();
    let warned = manager
        .findings()
        .iter()
        .any(|finding| finding.field == "host.blocks" && finding.severity == Severity::Warning);
    assert!(warned, "{:?}", manager.findings());
}

#[test]
fn settings_come_from_where_they_were_stated_and_say_so() {
    let toml = "[model]\nnum_layers = 2\npage_size = 4\ninner_dim = 16\n\
                [device]\nblocks = 8\n[host]\nblocks = 16";
    let environment = [("DYNAMO_LLM_HOST_BLOCKS", "32"), ("DYNAMO_LLM_DEVCE_BLOCKS", "9")];
    let settings = ConfigLayers::new().toml(toml).environment(environment).resolve().unwrap();
    let config = KvBlockManagerConfig::from_settings(settings).unwrap();
    let manager = KvBlockManager::new_blocking(config).unwrap();
    assert_eq!(manager.device().unwrap().total_blocks(), 8);
    assert_eq!(manager.host().unwrap().total_blocks(), 32);
    let misspelt =
        manager.findings().iter().find(|f| f.field == "DYNAMO_LLM_DEVCE_BLOCKS").unwrap();
    assert!(misspelt.to_string().contains("DYNAMO_LLM_DEVICE_BLOCKS"), "{misspelt}");
    let source = |field: &str| manager.settings().source(field).to_string();
    assert!(source("host.blocks").contains("DYNAMO_LLM_HOST_BLOCKS"), "{}", source("host.blocks"));
    assert_eq!(source("transfer.deadline_ms"), "default");
    assert!(KvBlockManagerConfig::from_toml_file("/no/such/file.toml").is_err());
    let missing = [("DYNAMO_LLM_CONFIG", "/no/such/file.toml")];
    assert!(KvBlockManagerConfig::from_env(missing).is_err());
}

#[test]
fn policies_are_chosen_per_tier() {
    let mut settings = Config::default();
    settings.eviction = EvictionKind::Arc;
    settings.host.eviction = Some(EvictionKind::Fifo);
    let own = KvManagerLayoutConfig::builder()
        .num_blocks(4)
        .policy(Arc::new(|slots| Box::new(dynamo_llm::block_manager::eviction::Lru::new(slots))));
    let builder = KvBlockManagerConfig::builder().settings(settings).model(model());
    let config = builder.clone().device_layout(tier(4)).host_layout(tier(8)).build().unwrap();
    let manager = KvBlockManager::new_blocking(config).unwrap();
    assert_eq!(manager.device().unwrap().policy(), "arc");
    assert_eq!(manager.host().unwrap().policy(), "fifo");
    let config = builder.device_layout(own.build()).host_layout(tier(8)).build().unwrap();
    let manager = KvBlockManager::new_blocking(config).unwrap();
    assert_eq!(manager.device().unwrap().policy(), "lru");
}

#[test]
fn messages_of_missing_memory_name_what_was_asked_and_what_there_is() {
    let large = KvManagerModelConfig::builder().num_layers(128).page_size(1024).inner_dim(32768);
    let message = refusal(|builder| {
        builder.model(large.build()).device_layout(tier(1 << 16)).host_layout(tier(0))
    });
    assert!(message.contains("65536") && message.contains("available"), "{message}");
}

/// Whether the memory at `address` was asked for in huge pages.
fn in_huge_pages(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut here = false;
    for line in maps.lines() {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).ok();
        if let Some((start, end)) = range.and_then(|(a, b)| Some((number(a)?, number(b)?))) {
            here = (start..end).contains(&address);
        } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| here) {
            return flags.split_whitespace().any(|flag| flag == "hg");
        }
    }
    panic!("no mapping at {address:#x}")
}

#[test]
fn memory_is_asked_for_in_huge_pages_where_the_settings_say_so() {
    for wanted in [false, true] {
        let mut settings = Config::default();
        settings.host.huge_pages = wanted;
        let builder = KvBlockManagerConfig::builder().settings(settings).model(model());
        let config = builder.device_layout(tier(4)).host_layout(tier(8)).build().unwrap();
        let manager = KvBlockManager::new_blocking(config).unwrap();
        let blocks = manager.host().unwrap().allocate_blocks_blocking(1).unwrap();
        let address = blocks[0].block_view().unwrap().as_ptr().addr();
        // A kernel without them is a warning, and no more than that.
        let told = manager.findings().iter().any(|finding| finding.field == "host.huge_pages");
        assert_eq!(in_huge_pages(address), wanted && !told);
        assert!(wanted || !told);
    }
}

#[test]
fn the_runtime_configuration_reaches_the_manager() {
    let config = KvBlockManagerConfig::builder()
        .runtime(KvManagerRuntimeConfig::builder().worker_id(7).build())
        .model(model())
        .device_layout(
            KvManagerLayoutConfig::builder().num_blocks(2).layout_type(LayoutType::Paged).build(),
        )
        .host_layout(tier(4))
        .build()
        .unwrap();
    let manager = KvBlockManager::new_blocking(config).unwrap();
    assert_eq!((manager.worker_id(), manager.block_size()), (7, PAGE));
    assert_eq!(manager.status().worker_id, 7);
    let nixl = KvManagerRuntimeConfig::builder().enable_nixl().build();
    assert!(refusal(|builder| builder.runtime(nixl)).contains("nixl"));
}
