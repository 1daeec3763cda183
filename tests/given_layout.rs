//! A device tier whose layout is given: blocks in memory that is arranged already.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use dynamo_llm::block_manager::{
    Identity, KvBlockManager, KvBlockManagerConfig, KvManagerLayoutConfig, KvManagerModelConfig,
    ManagerError, OnboardOptions, Registration, Tier, hash_tokens,
    layout::{Axis, BlockLayout, ExternalLayout, ExternalTensor, LayoutType},
    storage::{Storage, SystemStorage},
};
use dynamo_llm::common::dtype::DType;

const LAYERS: usize = 2;
const BLOCKS: usize = 4;
const PAGE: usize = 4;
const HEADS: usize = 2;
const SIZE: usize = 8;
const LAYER: usize = 2 * BLOCKS * PAGE * HEADS * SIZE;

fn model() -> KvManagerModelConfig {
    let model = KvManagerModelConfig::builder().num_layers(LAYERS).page_size(PAGE);
    model.inner_dim(HEADS * SIZE).build()
}

/// Layers in storages of their own, (outer, block, token, head, element), the last two by `order`.
fn layers(dtype: DType, head_major: bool) -> BlockLayout {
    let bytes = LAYER * dtype.size_bytes();
    let strides = if head_major {
        [BLOCKS * 64, 64, SIZE, PAGE * SIZE, 1]
    } else {
        [BLOCKS * 64, 64, HEADS * SIZE, SIZE, 1]
    };
    let strides = strides.map(|stride| stride as i64);
    let tensor = |l| ExternalTensor::new(l, 0, [2, BLOCKS, PAGE, HEADS, SIZE], strides);
    ExternalLayout::new(dtype, vec![bytes; LAYERS])
        .layer(tensor(0))
        .layer(tensor(1))
        .axes([Axis::Outer, Axis::Block, Axis::Token, Axis::Head, Axis::Element])
        .build()
        .unwrap()
}

fn storages() -> Vec<Arc<dyn Storage>> {
    let storage = || -> Arc<dyn Storage> { Arc::new(SystemStorage::new(LAYER * 2).unwrap()) };
    vec![storage(), storage()]
}

fn build(device: KvManagerLayoutConfig) -> Result<KvBlockManager, ManagerError> {
    let config = KvBlockManagerConfig::builder()
        .model(model())
        .device_layout(device)
        .host_layout(KvManagerLayoutConfig::builder().num_blocks(16).build())
        .build()?;
    KvBlockManager::new_blocking(config)
}

fn given(layout: BlockLayout) -> KvBlockManager {
    build(KvManagerLayoutConfig::builder().layout(layout).storage(storages()).build()).unwrap()
}

#[test]
fn it_states_the_number_of_blocks_and_they_come_back() {
    let manager = given(layers(DType::FP16, true));
    let device = manager.device().unwrap();
    assert_eq!(device.total_blocks(), BLOCKS);
    let tokens: Vec<u32> = (0..3 * PAGE as u32).collect();
    let hashes = hash_tokens(&tokens, PAGE, &Identity::new()).unwrap();
    let mut blocks = device.allocate_blocks_blocking(3).unwrap();
    let regions = || (0..LAYERS).flat_map(|layer| (0..2).map(move |outer| (layer, outer)));
    for (number, block) in blocks.iter_mut().enumerate() {
        for (layer, outer) in regions() {
            let bytes = block.layer_view_mut(layer, outer).unwrap();
            bytes.fill((16 * number + 2 * layer + outer) as u8);
        }
    }
    let chain = Registration::chain(&hashes, 0, None);
    let registered = device.register_blocks_as(blocks, &chain).unwrap();
    assert!(manager.offload(&registered).unwrap().wait(None).unwrap().iter().all(Result::is_ok));
    drop(registered);
    for mut block in device.allocate_blocks_blocking(BLOCKS).unwrap() {
        for (layer, outer) in regions() {
            block.layer_view_mut(layer, outer).unwrap().fill(0xFF);
        }
    }
    let found = manager.lookup(&hashes).unwrap();
    assert_eq!(found.count(Tier::Host), 3);
    let arrived = manager.onboard_blocking(found, OnboardOptions::default()).unwrap();
    assert_eq!(arrived.blocks.len(), 3);
    for (number, block) in arrived.blocks.iter().enumerate() {
        for (layer, outer) in regions() {
            let expected = (16 * number + 2 * layer + outer) as u8;
            assert!(block.layer_view(layer, outer).unwrap().iter().all(|&byte| byte == expected));
        }
    }
}

#[test]
fn two_packings_never_share_a_cache() {
    let fingerprint = |manager: &KvBlockManager, host: bool| {
        let pool = if host { manager.host() } else { manager.device() };
        pool.unwrap().blocks().fingerprint()
    };
    let tokens_first = given(layers(DType::FP16, false));
    let heads_first = given(layers(DType::FP16, true));
    for host in [false, true] {
        assert_ne!(fingerprint(&tokens_first, host), fingerprint(&heads_first, host));
    }
    assert_eq!(fingerprint(&heads_first, false), fingerprint(&heads_first, true));
    let host = |manager: &KvBlockManager| manager.host().unwrap().blocks().layout().clone();
    assert_eq!(host(&heads_first).packing(), Some("head:2,token:4,element:8"));
    assert!(!host(&heads_first).is_token_major());
    assert!(host(&tokens_first).is_token_major());
}

#[test]
fn what_does_not_fit_the_model_is_refused_by_name() {
    type Builder = KvManagerLayoutConfig;
    let tensor = |shape: [usize; 5]| {
        let bytes = 2 * shape.iter().product::<usize>();
        ExternalLayout::new(DType::FP16, [bytes])
            .layer(ExternalTensor::contiguous(0, 0, shape))
            .axes([Axis::Block, Axis::Layer, Axis::Outer, Axis::Token, Axis::Element])
            .build()
            .unwrap()
    };
    let with = |layout| Builder::builder().layout(layout);
    let refused: [(Builder, &str); 7] = [
        (with(tensor([4, 3, 2, 4, 16])).build(), "num_layers"),
        (with(tensor([4, 2, 1, 4, 16])).build(), "outer_dim"),
        (with(tensor([4, 2, 2, 8, 16])).build(), "page_size"),
        (with(tensor([4, 2, 2, 4, 8])).build(), "bytes of a layer"),
        (with(layers(DType::BF16, false)).build(), "bf16"),
        (with(tensor([4, 2, 2, 4, 16])).num_blocks(5).build(), "4 blocks"),
        (
            with(tensor([4, 2, 2, 4, 16])).layout_type(LayoutType::Paged).build(),
            "device_layout.layout_type",
        ),
    ];
    for (device, words) in refused {
        let error = build(device).map(drop).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("device_layout"), "{words}: {error}");
    }
}
