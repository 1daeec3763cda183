//! A manager with a disk tier, on a directory or on a volume that misbehaves.

use std::{path::Path, sync::Arc, time::Duration};

use dynamo_llm::block_manager::{
    EvictionMode, Identity, ImmutableBlock, KvBlockManager, KvBlockManagerConfig,
    KvManagerModelConfig, MutableBlock, OnboardOptions, OnboardedBlocks, Registration,
    SequenceHash, Tier,
    config::{Capacity, Config, OffloadPolicy},
    hash_tokens,
    io::{PsyncOptions, Volume},
    metrics::{Edge, EdgeMetrics},
};

/// Tokens of a block.
pub(crate) const PAGE: usize = 4;
pub(crate) const LONG: Duration = Duration::from_secs(20);
pub(crate) const FROM_DISK: Edge = Edge { from: Tier::Disk, to: Tier::Device };
pub(crate) const TO_DISK: Edge = Edge { from: Tier::Host, to: Tier::Disk };

/// What a manager is made from.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) settings: Config,
    pub(crate) volume: Option<Arc<dyn Volume>>,
    pub(crate) io: Option<PsyncOptions>,
}

impl Setup {
    /// 16 blocks on the device, `host` in the host tier, `disk` on disk.
    pub(crate) fn new(host: usize, disk: usize) -> Self {
        let mut settings = Config::default();
        settings.model =
            KvManagerModelConfig::builder().num_layers(3).page_size(PAGE).inner_dim(40).build();
        settings.device.capacity = Capacity::Blocks(16);
        settings.host.capacity = Capacity::Blocks(host);
        settings.disk.capacity = Capacity::Blocks(disk);
        settings.disk.io_threads = 2;
        settings.transfer.threads = Some(1);
        Self { settings, volume: None, io: None }
    }

    pub(crate) fn dir(mut self, dir: &Path) -> Self {
        self.settings.disk.dir = Some(dir.to_str().unwrap().to_owned());
        self
    }

    pub(crate) fn volume(mut self, volume: Arc<dyn Volume>) -> Self {
        self.volume = Some(volume);
        self
    }

    /// Nothing is stored unless the test says so.
    pub(crate) fn manual(mut self) -> Self {
        self.settings.offload.policy = OffloadPolicy::Manual;
        self
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.settings);
        self
    }

    pub(crate) fn open(&self) -> Rig {
        let mut builder = KvBlockManagerConfig::builder().settings(self.settings.clone());
        if let Some(volume) = &self.volume {
            builder = builder.disk_volume(volume.clone());
        }
        if let Some(io) = &self.io {
            builder = builder.disk_io(io.clone());
        }
        Rig { manager: KvBlockManager::new_blocking(builder.build().unwrap()).unwrap() }
    }
}

pub(crate) struct Rig {
    pub(crate) manager: KvBlockManager,
}

impl Rig {
    /// Allocates, fills and registers a chain on the device.
    pub(crate) fn fill(&self, hashes: &[SequenceHash]) -> Vec<ImmutableBlock> {
        let device = self.manager.device().unwrap();
        let mut blocks = device.allocate_blocks_blocking(hashes.len()).unwrap();
        for (block, &hash) in blocks.iter_mut().zip(hashes) {
            write(block, hash);
        }
        device.register_blocks_as(blocks, &Registration::chain(hashes, 0, None)).unwrap()
    }

    /// Fills a chain and lets it go down by itself.
    pub(crate) fn put(&self, hashes: &[SequenceHash]) {
        drop(self.fill(hashes));
        assert_eq!(self.manager.flush_blocking(LONG).unwrap(), 0);
    }

    /// Fills a chain and stores it on disk; the results.
    pub(crate) fn store(
        &self,
        hashes: &[SequenceHash],
    ) -> Vec<dynamo_llm::block_manager::BlockResult> {
        let blocks = self.fill(hashes);
        let stored = self.manager.offload_to(&blocks, Tier::Disk).unwrap();
        stored.wait(Some(LONG)).unwrap()
    }

    /// Drops everything above the disk that nobody holds.
    pub(crate) fn clear_memory(&self) {
        for pool in [self.manager.device(), self.manager.host()].into_iter().flatten() {
            pool.trigger_eviction_blocking(EvictionMode::Aggressive).unwrap();
        }
    }

    pub(crate) fn clear_device(&self) {
        let device = self.manager.device().unwrap();
        device.trigger_eviction_blocking(EvictionMode::Aggressive).unwrap();
    }

    /// Looks up and brings up what there is; every byte of it is right.
    pub(crate) fn get(&self, hashes: &[SequenceHash]) -> OnboardedBlocks {
        self.get_within(hashes, LONG)
    }

    pub(crate) fn get_within(&self, hashes: &[SequenceHash], time: Duration) -> OnboardedBlocks {
        let found = self.manager.lookup(hashes).unwrap();
        let deadline = std::time::Instant::now().checked_add(time);
        let options = OnboardOptions { deadline, ..OnboardOptions::default() };
        let arrived = self.manager.onboard_blocking(found, options).unwrap();
        for block in &arrived.blocks {
            assert!(is_right(block), "{block:?} holds other bytes");
        }
        arrived
    }

    /// Blocks of the prefix of `hashes` that are said to be on disk.
    pub(crate) fn on_disk(&self, hashes: &[SequenceHash]) -> usize {
        let disk = self.manager.disk().unwrap();
        disk.match_sequence_hashes_blocking(hashes).unwrap().len()
    }

    pub(crate) fn edge(&self, edge: Edge) -> EdgeMetrics {
        self.manager.status().edges[&edge].clone()
    }

    /// Recounts every slot of every tier.
    pub(crate) fn check(&self) {
        let tiers = [self.manager.device(), self.manager.host(), self.manager.disk()];
        for pool in tiers.into_iter().flatten() {
            pool.blocks().pool().self_check().unwrap();
        }
    }

    pub(crate) fn close(self) {
        let report = self.manager.shutdown_blocking(LONG);
        assert_eq!(report.unfinished, 0);
        self.check();
    }
}

pub(crate) fn hashes(seed: u32, blocks: usize) -> Vec<SequenceHash> {
    hashes_of(seed, blocks, &Identity::new())
}

pub(crate) fn hashes_of(seed: u32, blocks: usize, identity: &Identity) -> Vec<SequenceHash> {
    let tokens: Vec<u32> = (0..(blocks * PAGE) as u32).map(|token| token | seed << 16).collect();
    hash_tokens(&tokens, PAGE, identity).unwrap()
}

fn pattern(hash: SequenceHash, layer: usize, outer: usize, len: usize) -> Vec<u8> {
    let seed = hash.as_u128() as u64 ^ ((layer * 2 + outer) as u64) << 56;
    (0..len as u64)
        .map(|at| (seed.wrapping_mul(2 * at + 0x9e37_79b9_7f4a_7c15) >> 40) as u8)
        .collect()
}

fn write(block: &mut MutableBlock, hash: SequenceHash) {
    for layer in 0..block.num_layers() {
        for outer in 0..block.num_outer_dims() {
            let view = block.layer_view_mut(layer, outer).unwrap();
            let bytes = pattern(hash, layer, outer, view.len());
            view.copy_from_slice(&bytes);
        }
    }
}

pub(crate) fn is_right(block: &ImmutableBlock) -> bool {
    let hash = block.sequence_hash();
    (0..block.num_layers()).all(|layer| {
        (0..block.num_outer_dims()).all(|outer| {
            let view = block.layer_view(layer, outer).unwrap();
            view == pattern(hash, layer, outer, view.len())
        })
    })
}
