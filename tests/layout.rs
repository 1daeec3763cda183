//! Layouts against a model that knows the address of every byte.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::sync::Arc;

use dynamo_llm::block_manager::layout::{
    Axis, BlockLayout, ExternalLayout, ExternalTensor, LayoutConfig, LayoutError, LayoutType,
    MAX_PLACED_REGIONS, PAGED_ALIGNMENT, Span, pair_runs,
};
use dynamo_llm::common::dtype::DType;
use proptest::prelude::*;

#[path = "layout/external.rs"]
mod external;
#[path = "layout/model.rs"]
mod model;

use model::{At, Modelled, addresses, copy_through, foreign, memory, pairs, shapes};

proptest! {
    #[test]
    fn spans_are_the_canonical_bytes_in_maximal_runs((model, _) in pairs()) {
        let Modelled { layout, bytes } = &model;
        let (layers, outers) = (layout.num_layers(), layout.outer_dim());
        let region = layout.region_bytes();
        prop_assert_eq!(layout.block_bytes(), bytes[0].len());
        for (b, block) in bytes.iter().enumerate() {
            for start in 0..=layers {
                for end in start..=layers {
                    let spans: Vec<Span> = layout.spans(b, start..end).unwrap().collect();
                    let expected = &block[start * outers * region..end * outers * region];
                    prop_assert_eq!(addresses(&spans), expected);
                    for pair in spans.windows(2) {
                        prop_assert_ne!(
                            (pair[0].storage, pair[0].end()), (pair[1].storage, pair[1].offset));
                    }
                }
            }
            for (index, expected) in block.chunks(region).enumerate() {
                let spans = layout.region_spans(b, index / outers, index % outers).unwrap();
                prop_assert_eq!(addresses(&spans.collect::<Vec<_>>()), expected);
            }
            let spans: Vec<Span> = layout.spans(b, 0..layers).unwrap().collect();
            let whole = (spans.len() == 1).then(|| spans[0]);
            prop_assert_eq!(layout.contiguous_block(b), whole);
        }
    }

    #[test]
    fn every_byte_belongs_to_one_block_and_lies_in_its_storage((model, _) in pairs()) {
        let Modelled { layout, bytes } = &model;
        let mut seen = HashSet::new();
        for b in 0..bytes.len() {
            let spans: Vec<Span> = layout.spans(b, 0..layout.num_layers()).unwrap().collect();
            for (storage, at) in addresses(&spans) {
                prop_assert!(at < layout.storage_sizes()[storage]);
                prop_assert!(seen.insert((storage, at)));
            }
        }
        prop_assert_eq!(seen.len(), bytes.len() * layout.block_bytes());
    }

    #[test]
    fn paired_runs_copy_what_a_naive_copy_does((from, to) in pairs(), seed: usize) {
        if from.layout.compatible_with(&to.layout).is_err() {
            prop_assert_ne!(from.layout.packing(), to.layout.packing());
            return Ok(());
        }
        let src = memory(&from.layout, seed);
        let (a, b) = (seed % from.bytes.len(), seed / 7 % to.bytes.len());
        let mut fast = memory(&to.layout, !seed);
        let mut naive = fast.clone();
        for (&(s, at), &(d, to)) in from.bytes[a].iter().zip(&to.bytes[b]) {
            naive[d][to] = src[s][at];
        }
        copy_through((&from.layout, a), &src, (&to.layout, b), &mut fast);
        prop_assert_eq!(fast, naive);

        let mut pieces: Vec<(Span, Span)> = Vec::new();
        pair_runs(&from.layout, a, &to.layout, b, 0..from.layout.num_layers(), |s, d| {
            pieces.push((s, d));
        }).unwrap();
        let joins = |a: &Span, b: &Span| a.storage == b.storage && a.end() == b.offset;
        for p in pieces.windows(2) {
            prop_assert!(!(joins(&p[0].0, &p[1].0) && joins(&p[0].1, &p[1].1)));
        }
    }

    #[test]
    fn a_statement_gives_the_right_reading_or_none(shape in shapes(), foreign in foreign()) {
        let (tensors, axes, _) = foreign.describe(&shape);
        let right = tensors.clone().axes(axes.clone()).build().unwrap();
        let sizes: Vec<_> = axes.iter().map(|&a| (a, shape.count(a))).collect();
        let order: Vec<_> =
            foreign.memory.iter().map(|&(a, _)| a).filter(|a| axes.contains(a)).collect();
        let statements = [
            tensors.clone().sizes(sizes.clone()),
            tensors.clone().memory_order(order.clone()),
            tensors.clone().sizes(sizes.clone()).memory_order(order.clone()),
            tensors.axes(axes).sizes(sizes).memory_order(order),
        ];
        for (index, statement) in statements.iter().enumerate() {
            match statement.build() {
                Ok(layout) => {
                    prop_assert_eq!(layout.to_string(), right.to_string());
                    for b in 0..shape.blocks {
                        let spans = |l: &BlockLayout| -> Vec<Span> {
                            l.spans(b, 0..shape.layers).unwrap().collect()
                        };
                        prop_assert_eq!(spans(&layout), spans(&right));
                    }
                }
                Err(LayoutError::Ambiguous { .. }) => prop_assert!(index < 2),
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }

    #[test]
    fn no_number_panics(
        numbers in prop::collection::vec(
            prop_oneof![0..200usize, any::<usize>(), (0..64u32).prop_map(|log| 1 << log)], 6),
        which in 0..5usize,
        strides in prop::collection::vec(
            prop_oneof![any::<i64>(), (0..63u32).prop_map(|log| 1 << log)], 4),
    ) {
        let config = LayoutConfig {
            num_blocks: numbers[0], num_layers: numbers[1], outer_dim: numbers[2] % 3,
            page_size: numbers[3], inner_dim: numbers[4], dtype: DType::FP64,
            alignment: numbers[5],
        };
        let kind = [
            LayoutType::FullyContiguous,
            LayoutType::Paged,
            LayoutType::LayerSeparate { outer_contiguous: true },
            LayoutType::LayerSeparate { outer_contiguous: false },
            LayoutType::Custom(Arc::new(At(usize::wrapping_mul, Some(numbers[5]), usize::MAX))),
        ];
        if let Ok(layout) = BlockLayout::new(config, &kind[which]) {
            prop_assert!(layout.spans(config.num_blocks - 1, 0..config.num_layers).is_ok());
            prop_assert!(layout.spans(numbers[4], numbers[5]..numbers[3]).is_err()
                || numbers[4] < config.num_blocks);
        }
        let tensor = ExternalTensor::new(0, numbers[0], numbers[1..5].to_vec(), strides);
        let dense = ExternalTensor::contiguous(numbers[2] % 3, numbers[0], numbers[1..5].to_vec());
        for tensor in [tensor, dense] {
            let axes = [Axis::Block, Axis::Head, Axis::Token, Axis::Element];
            let _ = ExternalLayout::new(DType::FP32, [numbers[5]]).layer(tensor).axes(axes).build();
        }
    }
}

#[test]
fn sizes_that_pass_the_address_space_are_an_overflow() {
    let config = LayoutConfig::builder().num_blocks(usize::MAX / 2).build();
    for kind in [
        LayoutType::FullyContiguous,
        LayoutType::Paged,
        LayoutType::LayerSeparate { outer_contiguous: true },
        LayoutType::LayerSeparate { outer_contiguous: false },
        LayoutType::Custom(Arc::new(At(|_, l| l << 20, Some(1 << 40), usize::MAX))),
    ] {
        let error = BlockLayout::new(config, &kind).unwrap_err();
        assert!(matches!(error, LayoutError::Overflow { .. }), "{kind}: {error}");
    }
    let tensor = ExternalTensor::new(0, 0, [1, 1 << 20, 1 << 20], [0, 1 << 60, 1 << 45]);
    let tensors = ExternalLayout::new(DType::UINT8, [usize::MAX]).layer(tensor);
    let error = tensors.axes([Axis::Block, Axis::Token, Axis::Element]).build().unwrap_err();
    assert!(matches!(error, LayoutError::Overflow { .. }), "{error}");
    let aligned = LayoutConfig { num_blocks: 1, alignment: 1 << 63, ..config };
    let error = BlockLayout::new(aligned, &LayoutType::FullyContiguous).unwrap_err();
    assert!(matches!(error, LayoutError::Overflow { .. }), "{error}");
}

#[test]
fn a_field_outside_its_limits_is_named_with_value_and_limit() {
    let good = LayoutConfig::builder().num_blocks(4).build();
    let refused = |config: LayoutConfig| {
        BlockLayout::new(config, &LayoutType::Paged).unwrap_err().to_string()
    };
    assert!(refused(LayoutConfig { num_blocks: 0, ..good }).starts_with("num_blocks: 0 "));
    let cases = [
        (LayoutConfig { num_layers: 129, ..good }, "num_layers: 129 is outside 1..=128"),
        (LayoutConfig { outer_dim: 3, ..good }, "outer_dim: 3 is outside 1..=2"),
        (LayoutConfig { page_size: 0, ..good }, "page_size: 0 is outside 1..=1024"),
        (LayoutConfig { inner_dim: 32769, ..good }, "inner_dim: 32769 is outside 1..=32768"),
    ];
    for (config, message) in cases {
        assert_eq!(refused(config), message);
    }
    assert!(refused(LayoutConfig { alignment: 48, ..good }).contains("48 is no power of two"));
}

#[test]
fn indices_outside_the_layout_are_typed_errors() {
    let config = LayoutConfig::builder().num_blocks(4).num_layers(3).build();
    let layout = BlockLayout::new(config, &LayoutType::default()).unwrap();
    let block = LayoutError::InvalidBlockIndex { block: 4, num_blocks: 4 };
    assert_eq!(layout.spans(4, 0..1).unwrap_err(), block);
    assert_eq!(layout.region_spans(4, 0, 0).unwrap_err(), block);
    assert_eq!(layout.contiguous_block(4), None);
    let layer = |layer| LayoutError::InvalidLayerIndex { layer, num_layers: 3 };
    assert_eq!(layout.spans(0, 0..4).unwrap_err(), layer(3));
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = 2..1;
    assert_eq!(layout.spans(0, reversed).unwrap_err(), layer(1));
    assert_eq!(layout.region_spans(0, 3, 0).unwrap_err(), layer(3));
    let outer = LayoutError::InvalidOuterIndex { outer: 2, outer_dim: 2 };
    assert_eq!(layout.region_spans(0, 0, 2).unwrap_err(), outer);
    assert_eq!(layout.spans(0, 3..3).unwrap().count(), 0);
}

#[test]
fn layouts_of_another_shape_do_not_pair() {
    let config = LayoutConfig::builder().num_blocks(2).build();
    let one = BlockLayout::new(config, &LayoutType::Paged).unwrap();
    for (other, field) in [
        (LayoutConfig { num_layers: 31, ..config }, "num_layers"),
        (LayoutConfig { outer_dim: 1, ..config }, "outer_dim"),
        (LayoutConfig { dtype: DType::UINT8, ..config }, "region bytes"),
    ] {
        let other = BlockLayout::new(other, &LayoutType::Paged).unwrap();
        let error = pair_runs(&one, 0, &other, 0, 0..1, |_, _| unreachable!()).unwrap_err();
        assert!(error.to_string().starts_with(field), "{error}");
    }
}

#[test]
fn a_paged_block_is_one_aligned_run() {
    let config = LayoutConfig::builder().num_blocks(3).num_layers(3).inner_dim(33).build();
    let layout = BlockLayout::new(config, &LayoutType::Paged).unwrap();
    for b in 0..3 {
        let span = layout.contiguous_block(b).unwrap();
        assert_eq!((span.storage, span.offset % PAGED_ALIGNMENT, span.len), (0, 0, 6336));
    }
    assert_eq!(layout.storage_sizes(), [3 * 8192]);
    assert_eq!(
        layout.to_string(),
        "paged: 3 blocks of 3 layers x 2 x 16 tokens x 33 fp16 = 6336 bytes each, 1 storage(s) of \
         24576 bytes in all"
    );
}

#[test]
fn what_a_strategy_answers_is_checked() {
    let config = LayoutConfig::builder().num_blocks(4).num_layers(2).outer_dim(1).page_size(1);
    let config = config.inner_dim(10).dtype(DType::UINT8).build();
    let build = |at: At| BlockLayout::new(config, &LayoutType::Custom(Arc::new(at)));
    build(At(|b, l| b * 20 + l * 10, None, 80)).unwrap();
    build(At(|_, l| l * 10, Some(20), 80)).unwrap();
    build(At(|_, l| l * 40, Some(10), 80)).unwrap();
    let bounds = |e: &LayoutError| matches!(e, LayoutError::OutOfBounds { end: 80, .. });
    let overlap = |e: &LayoutError| matches!(e, LayoutError::Overlap { .. });
    for at in [At(|b, l| b * 20 + l * 10, None, 79), At(|_, l| l * 10, Some(20), 79)] {
        let error = build(at).unwrap_err();
        assert!(bounds(&error), "{error}");
    }
    for at in [
        At(|b, l| b * 20 + l * 9, None, 80),
        At(|b, l| if b == 3 { l * 10 } else { b * 20 + l * 10 }, None, 80),
        At(|_, l| l * 9, Some(20), 80),
        At(|_, l| l * 39, Some(10), 80),
        At(|_, l| l * 10, Some(0), 80),
    ] {
        let error = build(at).unwrap_err();
        assert!(overlap(&error), "{error}");
    }
    let many = LayoutConfig { num_blocks: MAX_PLACED_REGIONS, ..config };
    let at = Arc::new(At(|b, l| b * 20 + l * 10, None, usize::MAX));
    let error = BlockLayout::new(many, &LayoutType::Custom(at)).unwrap_err();
    assert!(matches!(error, LayoutError::OutOfRange { .. }), "{error}");
}
