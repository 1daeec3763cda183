//! Blocks go down, leave the device, and come back as what they were.

#![allow(clippy::unwrap_used)]

use dynamo_llm::block_manager::{
    Arrival, Identity, KvBlockManager, KvBlockManagerConfig, KvManagerLayoutConfig,
    KvManagerModelConfig, KvManagerRuntimeConfig, OnboardOptions, Registration, SequenceHash, Tier,
    hash_tokens,
};

fn manager(device: usize, host: usize) -> KvBlockManager {
    let config = KvBlockManagerConfig::builder()
        .runtime(KvManagerRuntimeConfig::builder().worker_id(0).build())
        .model(KvManagerModelConfig::builder().num_layers(3).page_size(4).inner_dim(64).build())
        .device_layout(KvManagerLayoutConfig::builder().num_blocks(device).build())
        .host_layout(KvManagerLayoutConfig::builder().num_blocks(host).build())
        .build()
        .unwrap();
    KvBlockManager::new_blocking(config).unwrap()
}

fn hashes(seed: u32, blocks: usize) -> Vec<SequenceHash> {
    let tokens: Vec<u32> = (0..blocks as u32 * 4).map(|token| token ^ (seed << 16)).collect();
    hash_tokens(&tokens, 4, &Identity::new()).unwrap()
}

/// Fills and registers a chain; the byte of each block is the low byte of its hash.
fn fill(manager: &KvBlockManager, hashes: &[SequenceHash]) {
    let device = manager.device().unwrap();
    let mut blocks = device.allocate_blocks_blocking(hashes.len()).unwrap();
    for (block, hash) in blocks.iter_mut().zip(hashes) {
        block.block_view_mut().unwrap().fill(hash.as_bytes()[0]);
    }
    let registered =
        device.register_blocks_as(blocks, &Registration::chain(hashes, 0, None)).unwrap();
    let results = manager.offload(&registered).unwrap().wait(None).unwrap();
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

#[test]
fn blocks_that_left_the_device_come_back_from_the_host() {
    let manager = manager(8, 64);
    let first = hashes(1, 6);
    fill(&manager, &first);
    for seed in 2..6 {
        fill(&manager, &hashes(seed, 8));
    }
    let found = manager.lookup(&first).unwrap();
    assert_eq!((found.len(), found.count(Tier::Host)), (6, 6));
    let arrived = manager.onboard_blocking(found, OnboardOptions::default()).unwrap();
    assert_eq!(arrived.results, vec![Ok(Arrival::Copied); 6]);
    for (block, hash) in arrived.blocks.iter().zip(&first) {
        assert_eq!(block.sequence_hash(), *hash);
        assert!(block.block_view().unwrap().iter().all(|&byte| byte == hash.as_bytes()[0]));
    }
    drop(arrived);
    for pool in [manager.device(), manager.host()].into_iter().flatten() {
        pool.blocks().pool().self_check().unwrap();
    }
    assert_eq!(manager.lookup(&first).unwrap().count(Tier::Device), 6);
}
