//! A block manager inside a service: configured by text and environment, followed through events,
//! asked for what it holds, reset when the weights change.
//!
//! Run it with `cargo run --example embed`; try `DYNAMO_LLM_HOST_BLOCKS=4` before it.

#![allow(clippy::print_stdout)]

use std::{
    error::Error,
    ffi::OsString,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use dynamo_llm::block_manager::{
    EventManager, EvictionMode, Identity, ImmutableBlock, KvBlockManager, KvBlockManagerConfig,
    OnboardOptions, Registration, SequenceHash,
    config::ConfigLayers,
    events::{BlockEvent, TierCleared},
    hash_tokens,
};

/// What the operator wrote; the environment has the last word.
const SETTINGS: &str = r#"
    [model]
    name = "example"
    num_layers = 4
    page_size = 16
    inner_dim = 256

    [device]
    blocks = 16

    [host]
    blocks = 64
"#;

/// Tells a router what became resident where. This one only counts.
#[derive(Default)]
struct Router {
    registered: AtomicU64,
    evicted: AtomicU64,
    cleared: AtomicU64,
}

impl EventManager for Router {
    fn block_registered(&self, _: &BlockEvent) {
        self.registered.fetch_add(1, Ordering::Relaxed);
    }

    fn block_evicted(&self, _: &BlockEvent) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
    }

    fn tier_cleared(&self, _: &TierCleared) {
        self.cleared.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    serve(std::env::vars_os()).await
}

/// The life of the service.
pub(crate) async fn serve(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(), Box<dyn Error>> {
    let settings = ConfigLayers::new().toml(SETTINGS).environment(environment).resolve()?;
    let router = Arc::new(Router::default());
    let config =
        KvBlockManagerConfig::builder().settings(settings).event_manager(router.clone()).build()?;
    let manager = KvBlockManager::new(config).await?;
    for finding in manager.findings() {
        println!("{}: {finding}", finding.severity);
    }

    // Requests with one long prompt in common, and noise that drives it off the device.
    let prompt: Vec<u32> = (0..8 * manager.block_size() as u32).collect();
    println!("first request: {} blocks found", request(&manager, &prompt).await?);
    for noise in 1..5_u32 {
        let tokens: Vec<u32> = prompt.iter().map(|token| token + 1000 * noise).collect();
        request(&manager, &tokens).await?;
        manager.flush(Duration::from_secs(5)).await?;
    }
    println!("same prompt again: {} blocks found", request(&manager, &prompt).await?);

    // New weights: nothing computed with the old ones may be found.
    let report = manager.reset().await?;
    println!("reset: {:?} still held", report.held);
    println!("after the reset: {} blocks found", request(&manager, &prompt).await?);

    if let Some(device) = manager.device() {
        device.trigger_eviction(EvictionMode::Normal).await?;
    }
    let report = manager.shutdown(Duration::from_secs(5)).await;
    println!("shut down, {} blocks unfinished\n", report.unfinished);
    println!("{}", manager.status());
    println!(
        "events: {} registered, {} evicted, {} tiers cleared",
        router.registered.load(Ordering::Relaxed),
        router.evicted.load(Ordering::Relaxed),
        router.cleared.load(Ordering::Relaxed),
    );
    Ok(())
}

/// Serves one request; returns how many of its blocks were cached.
async fn request(manager: &KvBlockManager, tokens: &[u32]) -> Result<usize, Box<dyn Error>> {
    let hashes = hash_tokens(tokens, manager.block_size(), &Identity::new())?;
    let found = manager.lookup(&hashes)?;
    let cached = manager.onboard(found, OnboardOptions::default()).await?.blocks;
    for (block, hash) in cached.iter().zip(&hashes) {
        if block.block_view()?.iter().any(|&byte| byte != value(*hash)) {
            return Err(format!("{block:?} holds the bytes of another block").into());
        }
    }
    // The rest is computed. Write-through takes it down to the host by itself.
    let computed = compute(manager, &hashes, cached.len()).await?;
    drop(computed);
    Ok(cached.len())
}

/// Stands for the model: fills the blocks that are missing.
async fn compute(
    manager: &KvBlockManager,
    hashes: &[SequenceHash],
    cached: usize,
) -> Result<Vec<ImmutableBlock>, Box<dyn Error>> {
    let device = manager.device().ok_or("this example needs a device tier")?;
    let mut blocks = device.allocate_blocks(hashes.len() - cached).await?;
    for (block, hash) in blocks.iter_mut().zip(&hashes[cached..]) {
        block.block_view_mut()?.fill(value(*hash));
    }
    let parent = cached.checked_sub(1).map(|last| hashes[last]);
    let names = Registration::chain(&hashes[cached..], 0, parent);
    Ok(device.register_blocks_as(blocks, &names)?)
}

fn value(hash: SequenceHash) -> u8 {
    hash.as_bytes()[0]
}
