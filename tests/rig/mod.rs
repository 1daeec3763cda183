//! A manager with engines that can be made to misbehave, and blocks whose bytes follow from their
//! hashes.

#![allow(clippy::unwrap_used, dead_code, unused_imports)]

mod log;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use dynamo_llm::{
    block_manager::{
        BlockResult, EvictionMode, Identity, ImmutableBlock, KvBlockManager, KvBlockManagerConfig,
        KvBlockManagerConfigBuilder, KvManagerLayoutConfig, KvManagerModelConfig, LayoutType,
        Match, MutableBlock, OnboardOptions, OnboardedBlocks, Registration, SequenceHash, Tier,
        Transfer,
        config::{Config, OffloadPolicy},
        hash_tokens,
        metrics::{Edge, EdgeMetrics},
        transfer::{FaultEngine, Faults, HostEngine},
    },
    common::dtype::DType,
};

pub(crate) use log::Log;

/// Tokens of a block.
pub(crate) const PAGE: usize = 4;
/// Longer than anything here takes; what waits so long hangs.
pub(crate) const LONG: Duration = Duration::from_secs(20);

pub(crate) const DOWN: Edge = Edge { from: Tier::Device, to: Tier::Host };
pub(crate) const UP: Edge = Edge { from: Tier::Host, to: Tier::Device };

pub(crate) struct Rig {
    pub(crate) manager: KvBlockManager,
    pub(crate) load: Arc<FaultEngine>,
    pub(crate) store: Arc<FaultEngine>,
}

type Builder = KvBlockManagerConfigBuilder;

impl Rig {
    /// Everything is stored as soon as it is registered.
    pub(crate) fn new(device: usize, host: usize) -> Self {
        Self::with(device, host, OffloadPolicy::WriteThrough, |builder| builder)
    }

    /// Nothing is stored unless the test says so.
    pub(crate) fn manual(device: usize, host: usize) -> Self {
        Self::with(device, host, OffloadPolicy::Manual, |builder| builder)
    }

    /// Stores go through an engine that queues at most `limit` blocks.
    pub(crate) fn tight(device: usize, host: usize, limit: usize) -> Self {
        let engine = |name, limit| Arc::new(HostEngine::new(name, 1, limit));
        let engines = (engine("load", 1 << 16), engine("store", limit));
        Self::with(device, host, OffloadPolicy::WriteThrough, |b| b.engines(engines.0, engines.1))
    }

    /// Blocks of 1 MiB, their regions of 512 KiB.
    pub(crate) fn large() -> Self {
        let model = KvManagerModelConfig::builder().num_layers(1).page_size(PAGE).inner_dim(32768);
        let model = model.dtype(DType::FP32).build();
        Self::with(4, 8, OffloadPolicy::Manual, |builder| builder.model(model))
    }

    pub(crate) fn with(
        device: usize,
        host: usize,
        policy: OffloadPolicy,
        more: impl FnOnce(Builder) -> Builder,
    ) -> Self {
        let engine = |name, threads| {
            let engine = Arc::new(HostEngine::new(name, threads, 1 << 16));
            Arc::new(FaultEngine::new(engine, Faults::none(0)))
        };
        let (load, store) = (engine("load", 2), engine("store", 1));
        let mut settings = Config::default();
        settings.offload.policy = policy;
        let model = KvManagerModelConfig::builder().num_layers(3).page_size(PAGE).inner_dim(40);
        let tier = KvManagerLayoutConfig::builder;
        let spread = LayoutType::LayerSeparate { outer_contiguous: true };
        let builder = KvBlockManagerConfig::builder()
            .settings(settings)
            .model(model.build())
            .device_layout(tier().num_blocks(device).layout_type(spread).build())
            .host_layout(tier().num_blocks(host).build())
            .engines(load.clone(), store.clone());
        let config = more(builder).build().unwrap();
        Self { manager: KvBlockManager::new_blocking(config).unwrap(), load, store }
    }

    /// Waits until nothing is on its way; what found no room stays queued.
    pub(crate) fn settle(&self) {
        self.manager.flush_blocking(LONG).unwrap();
        eventually("loads end", || edge(self, UP).queue_depth == 0);
    }

    /// Allocates, fills and registers a chain on the device.
    pub(crate) fn fill(&self, hashes: &[SequenceHash]) -> Vec<ImmutableBlock> {
        let device = self.manager.device().unwrap();
        let mut blocks = device.allocate_blocks_blocking(hashes.len()).unwrap();
        for (block, &hash) in blocks.iter_mut().zip(hashes) {
            write(block, hash);
        }
        device.register_blocks_as(blocks, &Registration::chain(hashes, 0, None)).unwrap()
    }

    /// Fills a chain and stores it; nothing of it is held afterwards.
    pub(crate) fn put(&self, hashes: &[SequenceHash]) {
        let results = settled(self.manager.offload(&self.fill(hashes)).unwrap());
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }

    /// Drops everything from the device that nobody holds; the host keeps what it has.
    pub(crate) fn clear_device(&self) {
        let device = self.manager.device().unwrap();
        device.trigger_eviction_blocking(EvictionMode::Aggressive).unwrap();
    }

    pub(crate) fn lookup(&self, hashes: &[SequenceHash]) -> Match {
        self.manager.lookup(hashes).unwrap()
    }

    /// Looks up and brings up what there is; every byte of it is right.
    pub(crate) fn get(&self, hashes: &[SequenceHash]) -> OnboardedBlocks {
        let arrived = self.manager.onboard_blocking(self.lookup(hashes), options()).unwrap();
        assert_bytes(&arrived.blocks);
        arrived
    }

    /// Blocks of the prefix of `hashes` that each tier alone has.
    pub(crate) fn present(&self, tier: Tier, hashes: &[SequenceHash]) -> usize {
        let pool = self.manager.pool(tier).unwrap();
        pool.match_sequence_hashes_blocking(hashes).unwrap().len()
    }

    /// Recounts every slot of both tiers.
    pub(crate) fn check(&self) {
        for pool in [self.manager.device(), self.manager.host()].into_iter().flatten() {
            pool.blocks().pool().self_check().unwrap();
            let status = pool.status();
            let sum =
                status.free + status.mutable + status.active + status.inactive + status.quarantined;
            assert_eq!(sum, status.capacity, "{status:?}");
        }
    }

    /// Nothing is held and nothing is on its way.
    pub(crate) fn assert_idle(&self) {
        self.settle();
        self.check();
        for pool in [self.manager.device(), self.manager.host()].into_iter().flatten() {
            let status = pool.status();
            assert_eq!((status.mutable, status.active), (0, 0), "{status:?}");
        }
    }
}

/// The figures of one way.
pub(crate) fn edge(rig: &Rig, edge: Edge) -> EdgeMetrics {
    rig.manager.status().edges[&edge].clone()
}

/// Waits for another thread to get there.
pub(crate) fn eventually(what: &str, there: impl Fn() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < LONG, "waited in vain until {what}");
        thread::yield_now();
    }
}

pub(crate) fn options() -> OnboardOptions {
    OnboardOptions::default()
}

/// The hashes of a sequence of `blocks` blocks that no other seed shares.
pub(crate) fn hashes(seed: u32, blocks: usize) -> Vec<SequenceHash> {
    hashes_of(seed, blocks, &Identity::new())
}

pub(crate) fn hashes_of(seed: u32, blocks: usize, identity: &Identity) -> Vec<SequenceHash> {
    hash_tokens(&tokens(seed, blocks), PAGE, identity).unwrap()
}

pub(crate) fn tokens(seed: u32, blocks: usize) -> Vec<u32> {
    (0..(blocks * PAGE) as u32).map(|token| token | seed << 16).collect()
}

/// The bytes of one (layer, outer) of the block with this hash.
pub(crate) fn pattern(hash: SequenceHash, layer: usize, outer: usize, len: usize) -> Vec<u8> {
    let seed = hash.as_u128() as u64 ^ ((layer * 2 + outer) as u64) << 56;
    (0..len as u64)
        .map(|at| (seed.wrapping_mul(2 * at + 0x9e37_79b9_7f4a_7c15) >> 40) as u8)
        .collect()
}

pub(crate) fn write(block: &mut MutableBlock, hash: SequenceHash) {
    for layer in 0..block.num_layers() {
        for outer in 0..block.num_outer_dims() {
            let view = block.layer_view_mut(layer, outer).unwrap();
            let bytes = pattern(hash, layer, outer, view.len());
            view.copy_from_slice(&bytes);
        }
    }
}

/// Whether the block's bytes are those of its hash.
pub(crate) fn is_right(block: &ImmutableBlock) -> bool {
    let hash = block.sequence_hash();
    let regions = (0..block.num_layers())
        .flat_map(|layer| (0..block.num_outer_dims()).map(move |outer| (layer, outer)));
    regions.into_iter().all(|(layer, outer)| {
        let view = block.layer_view(layer, outer).unwrap();
        view == pattern(hash, layer, outer, view.len())
    })
}

pub(crate) fn assert_bytes(blocks: &[ImmutableBlock]) {
    for block in blocks {
        assert!(is_right(block), "{block:?} holds other bytes");
    }
}

/// The results of a transfer, which must end.
#[allow(clippy::needless_pass_by_value)]
pub(crate) fn settled(transfer: Transfer) -> Vec<BlockResult> {
    transfer.wait(Some(LONG)).unwrap()
}
