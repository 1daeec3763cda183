//! Sealed scattered copies beside a parallel memcpy of the same bytes.
//!
//! Blocks of 1 and 2 MiB (64 regions each, as 32 layers of K and V) are moved between two regions
//! far larger than the cache, in random order on both sides, by two threads. Ours copies, sums
//! every tile and seals every block; the reference only copies. Then the same blocks through a whole
//! manager: down to the host tier (sealed, registered) and up again (verified, registered).
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use std::ops::ControlFlow;
use std::thread;

use dynamo_llm::block_manager::seal::{Crc, Fingerprint, Seal, SealTiling};
use dynamo_llm::block_manager::storage::{Storage, StorageAccess, StorageMemset, SystemStorage};
use dynamo_llm::block_manager::transfer::kernel;
use dynamo_llm::block_manager::{
    Key, KvBlockManager, KvBlockManagerConfig, KvManagerLayoutConfig, KvManagerModelConfig,
    OnboardOptions, Registration, SequenceHash,
    config::{Config, OffloadPolicy},
    pool::ImmutableSlots,
};
use dynamo_llm::common::dtype::DType;

const MIB: usize = 1 << 20;
const REGIONS: usize = 64;
const THREADS: usize = 2;

mod figure;

/// Two regions and an order in which their blocks are paired.
struct Scene {
    source: SystemStorage,
    target: SystemStorage,
    order: Vec<(usize, usize)>,
    block_bytes: usize,
}

impl Scene {
    fn new(total: usize, block_bytes: usize) -> Self {
        let mut source = SystemStorage::new(total).unwrap();
        let target = SystemStorage::new(total).unwrap();
        target.prefault(THREADS, |_| ControlFlow::Continue(())).unwrap();
        let blocks = total / block_bytes;
        for block in 0..blocks {
            source.memset(block as u8, block * block_bytes, block_bytes).unwrap();
        }
        let order = shuffled(blocks, 1).into_iter().zip(shuffled(blocks, 2)).collect();
        Self { source, target, order, block_bytes }
    }

    /// Runs `copy(dst, src)` for each block, shared out over the threads.
    fn each(&self, copy: impl Fn(*mut u8, *const u8) + Sync) {
        thread::scope(|scope| {
            for part in self.order.chunks(self.order.len().div_ceil(THREADS)) {
                let copy = &copy;
                scope.spawn(move || {
                    for &(from, to) in part {
                        let at = |storage: &SystemStorage, block: usize| {
                            storage.ptr_at(block * self.block_bytes, self.block_bytes).unwrap()
                        };
                        copy(at(&self.target, to).as_ptr(), at(&self.source, from).as_ptr());
                    }
                    kernel::fence();
                });
            }
        });
    }
}

/// The numbers below `n` in an order that depends on `seed` alone.
fn shuffled(n: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for last in (1..n).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(last, (state % (last as u64 + 1)) as usize);
    }
    order
}

/// A whole way: blocks of `block_bytes` down to the host tier and up again, through the manager.
struct Way {
    manager: KvBlockManager,
    names: Vec<Registration>,
    hashes: Vec<SequenceHash>,
}

impl Way {
    fn new(total: usize, block_bytes: usize) -> Self {
        let blocks = total / block_bytes;
        let tier = || KvManagerLayoutConfig::builder().num_blocks(blocks).build();
        let inner_dim = block_bytes / REGIONS / 16 / DType::FP16.size_bytes();
        let model = KvManagerModelConfig::builder().num_layers(REGIONS / 2).page_size(16);
        let mut settings = Config::default();
        settings.offload.policy = OffloadPolicy::Manual;
        settings.transfer.threads = Some(THREADS);
        let config = KvBlockManagerConfig::builder()
            .settings(settings)
            .model(model.inner_dim(inner_dim).build())
            .device_layout(tier())
            .host_layout(tier())
            .build()
            .unwrap();
        let manager = KvBlockManager::new_blocking(config).unwrap();
        let order = shuffled(blocks, 3);
        let hashes: Vec<_> =
            order.into_iter().map(|n| SequenceHash::from_u128(n as u128 + 1)).collect();
        let names = Registration::chain(&hashes, 0, None);
        Self { manager, names, hashes }
    }

    /// Fills the device with blocks under all names; the host forgets.
    fn fill(&self) -> ImmutableSlots {
        self.manager.reset_blocking().unwrap();
        let device = self.manager.device().unwrap();
        let mut blocks = device.allocate_blocks_blocking(self.names.len()).unwrap();
        // Memory that nobody has written is one page of zeros, which would be read from the cache.
        for (number, block) in blocks.iter_mut().enumerate() {
            block.block_view_mut().unwrap().fill(number as u8);
        }
        drop(device.register_blocks_as(blocks, &self.names).unwrap());
        let keys: Vec<Key> = self.hashes.iter().copied().map(Key::from).collect();
        device.match_slots(&keys).unwrap()
    }

    fn down(&self, blocks: &ImmutableSlots) {
        self.manager.host().unwrap().reset_blocking().unwrap();
        let results = self.manager.offload_slots(blocks).unwrap().wait(None).unwrap();
        assert!(results.iter().all(Result::is_ok));
    }

    fn up(&self) {
        self.manager.device().unwrap().reset_blocking().unwrap();
        let found = self.manager.lookup(&self.hashes).unwrap();
        let up = self.manager.onboard_slots(found, OnboardOptions::default()).unwrap();
        assert_eq!(up.len(), self.hashes.len());
    }
}

fn main() {
    // Without cargo's flag for benches this is a test run: the same code over little.
    let total = if std::env::args().any(|arg| arg == "--bench") { 512 * MIB } else { 8 * MIB };
    for block_mib in [1, 2] {
        let scene = Scene::new(total, block_mib * MIB);
        let tiling = SealTiling::new(REGIONS, scene.block_bytes / REGIONS).unwrap();
        let fingerprint = Fingerprint::from_bytes([1; 32]);
        let sealed = |dst: *mut u8, src: *const u8| {
            let mut crc = Crc::new();
            let mut sums = Vec::with_capacity(tiling.tiles());
            for tile in tiling.iter() {
                let at = tile.region * tiling.region_bytes() + tile.offset;
                // SAFETY: the tile lies inside the block, blocks of source and target are apart,
                // and each target block is written by one thread.
                unsafe { kernel::copy_sealed(dst.add(at), src.add(at), tile.len, &mut crc) };
                sums.push(crc.take());
            }
            std::hint::black_box(Seal::new(&[0; 20], &fingerprint, sums));
        };
        let bare = |dst: *mut u8, src: *const u8| {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(src, dst, tiling.block_bytes()) };
        };
        figure::compare(
            &format!("sealed_copy_{block_mib}mib"),
            "GB/s",
            scene.source.size() as f64 / 1e9,
            || scene.each(sealed),
            "parallel memcpy",
            || scene.each(bare),
        );
        let way = Way::new(total, block_mib * MIB);
        let blocks = way.fill();
        let gigabytes = scene.source.size() as f64 / 1e9;
        figure::compare(
            &format!("offload_{block_mib}mib"),
            "GB/s",
            gigabytes,
            || way.down(&blocks),
            "parallel memcpy",
            || scene.each(bare),
        );
        drop(blocks);
        figure::compare(
            &format!("onboard_{block_mib}mib"),
            "GB/s",
            gigabytes,
            || way.up(),
            "parallel memcpy",
            || scene.each(bare),
        );
    }
}
