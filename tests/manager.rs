//! What a manager does with its blocks, with those of others, at its end, and under callbacks.

#![allow(clippy::unwrap_used)]

mod rig;

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use dynamo_llm::{
    block_manager::{
        BlockError, BlockPoolError, EvictionMode, Identity, ImmutableBlock, KvBlockManager,
        KvBlockManagerConfig, KvManagerLayoutConfig, KvManagerModelConfig, ManagerError,
        OnboardOptions, Registration, Tier,
        config::OffloadPolicy,
        events::{BlockEvent, EventManager, TierCleared},
        hash_tokens,
        pool::PoolError,
    },
    common::dtype::DType,
};
use rig::{LONG, PAGE, Rig, assert_bytes, hashes, options, settled, write};

fn model() -> KvManagerModelConfig {
    KvManagerModelConfig::builder().num_layers(2).page_size(PAGE).inner_dim(16).build()
}

fn tier(blocks: usize) -> KvManagerLayoutConfig {
    KvManagerLayoutConfig::builder().num_blocks(blocks).build()
}

// ---- blocks -----------------------------------------------------------------------------------------

#[test]
fn a_block_is_filled_with_tokens_committed_and_found() {
    let rig = Rig::manual(8, 16);
    let device = rig.manager.device().unwrap();
    let tokens = rig::tokens(1, 2);
    let mut blocks = device.allocate_blocks_blocking(2).unwrap();
    let [first, second] = &mut blocks[..] else { panic!() };
    assert_eq!(first.add_token(1), Err(BlockError::NoSequence));
    first.init_sequence(Some("tenant")).unwrap();
    assert!(matches!(first.add_tokens(&[0; PAGE + 1]), Err(BlockError::Tokens(_))));
    first.add_tokens(&tokens[..PAGE - 1]).unwrap();
    assert_eq!((first.remaining(), first.is_full()), (1, false));
    assert_eq!(first.commit(), Err(BlockError::NotFull { remaining: 1 }));
    assert_eq!(first.pop_token(), Ok(Some(tokens[PAGE - 2])));
    first.pop_tokens(100).unwrap();
    assert_eq!(first.remaining(), PAGE);
    assert_eq!(first.sequence_hash(), None);
    first.add_tokens(&tokens[..PAGE]).unwrap();
    let hash = first.commit().unwrap();
    assert_eq!(first.commit(), Err(BlockError::AlreadyComplete));
    assert_eq!(first.init_sequence(None), Err(BlockError::AlreadyComplete));
    second.continue_sequence(first).unwrap();
    second.add_tokens(&tokens[PAGE..]).unwrap();
    second.commit().unwrap();
    let expected = hash_tokens(&tokens, PAGE, &Identity::new().with_salt("tenant")).unwrap();
    assert_eq!(hash, expected[0]);
    blocks.iter_mut().zip(&expected).for_each(|(block, &hash)| write(block, hash));
    let held = device.register_blocks_blocking(blocks).unwrap();
    assert_eq!(device.match_sequence_hashes_blocking(&expected).unwrap().len(), 2);
    let weak = held[1].downgrade();
    drop(held);
    assert_bytes(&[weak.upgrade().unwrap()]);
    rig.clear_device();
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_refused_registration_gives_the_blocks_back_as_they_were() {
    let rig = Rig::manual(8, 16);
    let device = rig.manager.device().unwrap();
    let mut blocks = device.allocate_blocks_blocking(2).unwrap();
    for block in &mut blocks {
        block.init_sequence(None).unwrap();
        block.add_tokens(&[7; PAGE]).unwrap();
    }
    let hash = blocks[0].commit().unwrap();
    let refused = device.register_blocks_blocking(blocks).unwrap_err();
    assert!(matches!(refused.error, BlockPoolError::BlockNotComplete { .. }));
    let mut blocks = refused.blocks;
    assert_eq!(blocks[0].sequence_hash(), Some(hash));
    blocks[1].commit().unwrap();
    let refused = device.register_blocks_as(blocks, &[]).unwrap_err();
    let mismatch = PoolError::LengthMismatch { tier: Tier::Device, blocks: 2, registrations: 0 };
    assert_eq!(refused.error, BlockPoolError::FailedToRegisterBlock(mismatch));
    device.reset_blocking().unwrap();
    let refused = device.register_blocks_blocking(refused.blocks).unwrap_err();
    assert!(refused.to_string().contains("reset"), "{refused}");
    assert_eq!(refused.blocks[0].sequence_hash(), Some(hash));
    drop(refused);
    rig.assert_idle();
}

#[test]
fn views_name_what_does_not_exist_and_what_is_not_one_run() {
    let rig = Rig::manual(2, 4);
    let device = rig.manager.device().unwrap();
    let mut block = device.allocate_blocks_blocking(1).unwrap().remove(0);
    let shape = (block.num_layers(), block.num_outer_dims(), block.page_size(), block.inner_dim());
    assert_eq!(shape, (3, 2, PAGE, 40));
    let error = block.layer_view(3, 0).unwrap_err();
    assert_eq!(error, BlockError::InvalidLayerIndex { layer: 3, num_layers: 3 });
    assert!(error.to_string().contains("0 to 2"));
    let error = block.layer_view_mut(usize::MAX, usize::MAX).unwrap_err();
    assert!(matches!(error, BlockError::InvalidLayerIndex { layer: usize::MAX, .. }));
    let error = block.layer_view(0, 2).unwrap_err();
    assert_eq!(error, BlockError::InvalidOuterIndex { outer: 2, outer_dim: 2 });
    // The device lies layer by layer here, the host block by block.
    assert!(matches!(block.block_view_mut(), Err(BlockError::NotContiguous { .. })));
    let host = rig.manager.host().unwrap().allocate_blocks_blocking(1).unwrap().remove(0);
    assert_eq!(host.block_view().unwrap().len(), 3 * 2 * PAGE * 40 * 2);
}

#[test]
fn memory_is_zero_at_first_use_in_any_type() {
    for dtype in [DType::FP8, DType::BF16, DType::FP64] {
        let model = KvManagerModelConfig::builder().num_layers(2).page_size(4).inner_dim(8);
        let config = KvBlockManagerConfig::builder()
            .model(model.dtype(dtype).outer_dim(1).build())
            .device_layout(tier(2))
            .without_device()
            .host_layout(tier(3))
            .build()
            .unwrap();
        let manager = KvBlockManager::new_blocking(config).unwrap();
        let blocks = manager.host().unwrap().allocate_blocks_blocking(3).unwrap();
        for block in &blocks {
            let view = block.block_view().unwrap();
            assert_eq!(view.len(), 2 * 4 * 8 * dtype.size_bytes());
            assert!(view.iter().all(|&byte| byte == 0));
        }
    }
}

#[test]
fn blocks_filled_in_the_host_are_sealed_there_and_come_up() {
    let rig = Rig::manual(8, 16);
    let host = rig.manager.host().unwrap();
    let wanted = hashes(1, 3);
    let mut blocks = host.allocate_blocks_blocking(3).unwrap();
    blocks.iter_mut().zip(&wanted).for_each(|(block, &hash)| write(block, hash));
    drop(host.register_blocks_as(blocks, &Registration::chain(&wanted, 0, None)).unwrap());
    let arrived = rig.get(&wanted);
    assert_eq!(arrived.blocks.len(), 3);
}

#[test]
fn without_a_device_the_host_serves_alone() {
    let config = KvBlockManagerConfig::builder()
        .model(model())
        .without_device()
        .host_layout(tier(4))
        .build()
        .unwrap();
    let manager = KvBlockManager::new_blocking(config).unwrap();
    assert!(manager.device().is_none());
    let wanted = hashes(1, 2);
    let host = manager.host().unwrap();
    let blocks = host.allocate_blocks_blocking(2).unwrap();
    let held = host.register_blocks_as(blocks, &Registration::chain(&wanted, 0, None)).unwrap();
    let found = manager.lookup(&wanted).unwrap();
    assert_eq!(found.count(Tier::Host), 2);
    let no_device = |error| matches!(error, ManagerError::NoSuchTier { tier: Tier::Device });
    assert!(no_device(manager.onboard_blocking(found, options()).unwrap_err()));
    let error = manager.offload(&held).unwrap_err();
    assert!(matches!(error, ManagerError::NoSuchTier { tier: Tier::Disk }), "{error}");
    assert_eq!(manager.flush_blocking(LONG).unwrap(), 0);
    assert_eq!(manager.reset_blocking().unwrap().held[&Tier::Host], 2);
}

#[test]
fn with_a_device_alone_a_match_is_onboard_already() {
    let config = KvBlockManagerConfig::builder()
        .model(model())
        .device_layout(tier(8))
        .host_layout(tier(0))
        .build()
        .unwrap();
    let manager = KvBlockManager::new_blocking(config).unwrap();
    let device = manager.device().unwrap();
    let wanted = hashes(1, 4);
    let blocks = device.allocate_blocks_blocking(4).unwrap();
    drop(device.register_blocks_as(blocks, &Registration::chain(&wanted, 0, None)).unwrap());
    let into = device.allocate_slots(2).unwrap();
    let options = OnboardOptions { skip: 1, into: Some(into), ..options() };
    let arrived = manager.onboard_blocking(manager.lookup(&wanted).unwrap(), options).unwrap();
    assert_eq!((arrived.blocks.len(), arrived.unused.len()), (3, 2));
    let stale = manager.lookup(&wanted).unwrap();
    manager.reset_blocking().unwrap();
    let arrived = manager.onboard_blocking(stale, OnboardOptions::default()).unwrap();
    assert!(arrived.blocks.is_empty() && arrived.results.iter().all(Result::is_err));
}

// ---- what is not its own ----------------------------------------------------------------------------

#[test]
fn blocks_of_another_manager_are_refused_everywhere_and_stay_whole() {
    let (ours, other) = (Rig::manual(4, 8), Rig::manual(4, 8));
    let wanted = hashes(1, 2);
    other.put(&wanted);
    let held = other.fill(&hashes(2, 2));
    let foreign = |error: ManagerError| {
        assert!(matches!(error, ManagerError::Pool(PoolError::ForeignHandle { .. })), "{error}");
        assert!(error.to_string().contains("another pool"));
    };
    let device = ours.manager.device().unwrap();
    let pool_refuses = |error: BlockPoolError| {
        assert!(matches!(error, BlockPoolError::InvalidMutableBlock { .. }), "{error}");
    };

    foreign(ours.manager.offload(&held).unwrap_err());
    // Mixed with our own: all or nothing.
    let mut mixed = ours.fill(&hashes(3, 1));
    mixed.extend(held.iter().cloned());
    foreign(ours.manager.offload(&mixed).unwrap_err());
    drop(mixed);
    // Blocks of two tiers are in two pools, and below the host there is nothing here.
    ours.put(&wanted);
    let hosted = ours.manager.host().unwrap().match_sequence_hashes_blocking(&wanted).unwrap();
    let mut mixed = ours.fill(&hashes(3, 1));
    mixed.extend(hosted.iter().cloned());
    foreign(ours.manager.offload(&mixed).unwrap_err());
    drop(mixed);
    let error = ours.manager.offload(&hosted).unwrap_err();
    assert!(matches!(error, ManagerError::NoSuchTier { tier: Tier::Disk }), "{error}");
    drop(hosted);

    other.clear_device();
    foreign(ours.manager.onboard_slots(other.lookup(&wanted), options()).unwrap_err());
    ours.clear_device();
    for pool in [other.manager.device().unwrap(), ours.manager.host().unwrap()] {
        let into = Some(pool.allocate_slots(2).unwrap());
        let options = OnboardOptions { into, ..options() };
        foreign(ours.manager.onboard_blocking(ours.lookup(&wanted), options).unwrap_err());
    }

    let theirs = other.manager.device().unwrap();
    let blocks = theirs.allocate_blocks_blocking(1).unwrap();
    let names = Registration::chain(&hashes(4, 1), 0, None);
    let refused = device.register_blocks_as(blocks, &names).unwrap_err();
    pool_refuses(refused.error);
    pool_refuses(device.add_blocks_blocking(refused.blocks).unwrap_err());
    let slots = theirs.allocate_slots(1).unwrap();
    let (error, slots) = device.register_slots(slots, &names).unwrap_err();
    assert!(matches!(error, BlockPoolError::Pool(PoolError::ForeignHandle { .. })), "{error}");
    drop(slots);
    let found = theirs.match_slots(&[hashes(2, 1)[0].into()]).unwrap();
    assert!(device.blocks().verify(&found).is_err());
    assert!(device.single(found).is_err());

    assert_bytes(&held);
    drop(held);
    for rig in [&ours, &other] {
        rig.assert_idle();
        assert_eq!(rig.manager.device().unwrap().available_blocks(), 4);
    }
}

#[test]
fn two_managers_in_one_process_know_nothing_of_each_other() {
    let (one, two) = (Rig::new(4, 8), Rig::new(4, 8));
    thread::scope(|scope| {
        for (rig, seed) in [(&one, 1_u32), (&two, 101)] {
            scope.spawn(move || {
                for seed in seed..seed + 50 {
                    drop(rig.fill(&hashes(seed, 3)));
                    rig.settle();
                    rig.clear_device();
                    assert_eq!(rig.get(&hashes(seed, 3)).blocks.len(), 3);
                }
            });
        }
    });
    assert_eq!(one.lookup(&hashes(150, 3)).len(), 0);
    assert_eq!(two.lookup(&hashes(50, 3)).len(), 0);
    one.assert_idle();
    two.assert_idle();
}

#[test]
fn after_shutdown_every_verb_says_so_and_blocks_stay_readable() {
    let rig = Rig::new(8, 16);
    let wanted = hashes(1, 2);
    let held = rig.fill(&wanted);
    let found = rig.lookup(&wanted);
    let manager = &rig.manager;
    let device = manager.device().unwrap().clone();
    let mutable = device.allocate_blocks_blocking(1).unwrap();
    let slots = device.allocate_slots(1).unwrap();
    assert_eq!(manager.shutdown_blocking(LONG).unfinished, 0);
    assert!(manager.is_shut_down());
    let shut = |result: Result<(), ManagerError>| {
        assert!(matches!(result, Err(ManagerError::Shutdown)), "{result:?}");
    };
    shut(manager.lookup(&wanted).map(drop));
    shut(manager.onboard_blocking(found.clone(), options()).map(drop));
    shut(manager.start_onboard(found, options()).map(drop));
    shut(manager.offload(&held).map(drop));
    shut(manager.reset_blocking().map(drop));
    shut(manager.flush_blocking(LONG).map(drop));
    let ended = |result: Result<(), BlockPoolError>| {
        assert_eq!(result, Err(BlockPoolError::ProgressEngineShutdown));
    };
    ended(device.allocate_blocks_blocking(1).map(drop));
    ended(device.match_sequence_hashes_blocking(&wanted).map(drop));
    ended(device.touch_blocks_blocking(&wanted).map(drop));
    ended(device.reset_blocking().map(drop));
    ended(device.trigger_eviction_blocking(EvictionMode::Normal).map(drop));
    let names = Registration::chain(&hashes(2, 1), 0, None);
    ended(device.register_blocks_as(mutable, &names).map(drop).map_err(|refused| refused.error));
    ended(device.register_slots(slots, &names).map(drop).map_err(|(error, _)| error));
    assert_bytes(&held);
    // Figures are to be had to the end, and a second end is no news.
    assert_eq!(manager.status().pools[&Tier::Device].active, 2);
    assert_eq!(manager.shutdown_blocking(Duration::ZERO).unfinished, 0);
    // Dropping the manager ends its pools as well.
    let pool = {
        let rig = Rig::new(4, 8);
        rig.manager.device().unwrap().clone()
    };
    ended(pool.allocate_blocks_blocking(1).map(drop));
}

#[test]
fn absurd_requests_are_refused_or_empty() {
    let rig = Rig::manual(4, 8);
    let device = rig.manager.device().unwrap();
    assert_eq!(
        device.allocate_blocks_blocking(usize::MAX).unwrap_err(),
        BlockPoolError::NotEnoughBlocksAvailable(usize::MAX, 4)
    );
    assert!(device.allocate_blocks_blocking(0).unwrap().is_empty());
    assert!(device.register_blocks_blocking(Vec::new()).unwrap().is_empty());
    assert!(rig.lookup(&[]).is_empty());
    assert!(rig.get(&[]).blocks.is_empty());
    assert!(settled(rig.manager.offload(&[]).unwrap()).is_empty());
    let skip = OnboardOptions { skip: usize::MAX, ..options() };
    drop(rig.fill(&hashes(1, 2)));
    let arrived = rig.manager.onboard_blocking(rig.lookup(&hashes(1, 2)), skip).unwrap();
    assert!(arrived.blocks.is_empty() && arrived.results.is_empty());
    let twice = [hashes(1, 1)[0]; 3];
    let arrived = rig.get(&twice);
    assert_eq!(arrived.blocks.len(), 3);
    // One block given twice is stored once, and both are told.
    let results = settled(rig.manager.offload(&arrived.blocks).unwrap());
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(rig.manager.host().unwrap().status().registrations, 1);
    drop(arrived);
    rig.assert_idle();
}

// ---- callbacks and threads --------------------------------------------------------------------------

/// Uses the manager from within its own events.
#[derive(Default)]
struct Nosy {
    manager: OnceLock<Weak<KvBlockManager>>,
    resets: AtomicUsize,
    calls: AtomicUsize,
}

impl Nosy {
    fn poke(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let Some(manager) = self.manager.get().and_then(Weak::upgrade) else { return };
        drop(manager.lookup(&hashes(1, 4)));
        let _ = manager.status();
        for pool in [manager.device(), manager.host()].into_iter().flatten() {
            drop(pool.allocate_blocks_blocking(1));
            let _ = pool.touch_blocks_blocking(&hashes(1, 2));
            pool.blocks().pool().self_check().unwrap();
        }
        drop(manager.start_onboard(manager.lookup(&hashes(1, 4)).unwrap(), options()));
    }
}

impl EventManager for Nosy {
    fn block_registered(&self, _: &BlockEvent) {
        self.poke();
    }

    fn block_evicted(&self, _: &BlockEvent) {
        self.poke();
    }

    fn tier_cleared(&self, _: &TierCleared) {
        self.poke();
        if self.resets.fetch_add(1, Ordering::Relaxed) < 6
            && let Some(manager) = self.manager.get().and_then(Weak::upgrade)
        {
            manager.reset_blocking().unwrap();
        }
    }
}

#[test]
fn an_event_sink_may_use_the_manager_resets_included() {
    let nosy: Arc<Nosy> = Arc::default();
    let rig = Rig::with(16, 32, OffloadPolicy::WriteThrough, |b| b.event_manager(nosy.clone()));
    let manager = Arc::new(rig.manager.clone());
    nosy.manager.set(Arc::downgrade(&manager)).unwrap();
    for seed in 1..20 {
        drop(rig.fill(&hashes(seed, 4)));
        rig.settle();
        drop(rig.get(&hashes(seed, 4)));
    }
    rig.manager.reset_blocking().unwrap();
    assert!(nosy.resets.load(Ordering::Relaxed) > 6);
    assert!(nosy.calls.load(Ordering::Relaxed) > 100);
    assert_eq!(rig.lookup(&hashes(19, 4)).len(), 0);
    rig.assert_idle();
    assert_eq!(rig.manager.status().events.panics, 0);
}

#[test]
fn many_threads_use_one_manager_and_every_byte_is_right() {
    let rig = Rig::new(24, 48);
    thread::scope(|scope| {
        for worker in 0..4_u32 {
            let rig = &rig;
            scope.spawn(move || {
                for round in 0..150_u32 {
                    let wanted = hashes((round * 7 + worker) % 12, 4);
                    let arrived = rig.get(&wanted).blocks;
                    let device = rig.manager.device().unwrap();
                    let missing = &wanted[arrived.len()..];
                    if let Ok(mut blocks) = device.allocate_blocks_blocking(missing.len()) {
                        blocks
                            .iter_mut()
                            .zip(missing)
                            .for_each(|(block, &hash)| write(block, hash));
                        let parent = arrived.last().map(ImmutableBlock::sequence_hash);
                        let names = Registration::chain(missing, 0, parent);
                        // Refused when another thread's reset came in between.
                        let Ok(held) = device.register_blocks_as(blocks, &names) else { continue };
                        if round % 3 == 0 {
                            drop(rig.manager.offload(&held).unwrap());
                        }
                        assert_bytes(&held);
                    }
                    if round % 50 == 49 {
                        rig.manager.reset_blocking().unwrap();
                    }
                    let usage = device.usage_rate();
                    assert!((0.0..=1.0).contains(&usage), "{usage}");
                }
            });
        }
    });
    rig.assert_idle();
}
