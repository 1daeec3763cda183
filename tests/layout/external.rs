//! External tensors: what is read, what is refused.

use std::collections::HashSet;

use dynamo_llm::block_manager::layout::{
    Axis, BlockLayout, ExternalLayout, ExternalTensor, LayoutConfig, LayoutError, LayoutType, Span,
};
use dynamo_llm::common::dtype::DType;

use crate::model::copy_through;

/// Tensors of shape (6, 16, heads, 32) whose elements are told apart by their logical position:
/// stored to a paged host block and loaded into another block, element for element.
fn round_trip(layout: &BlockLayout, strides: [usize; 4], heads: usize) {
    let config = LayoutConfig::builder().num_blocks(2).num_layers(1).outer_dim(1);
    let config = config.inner_dim(heads * 32).dtype(DType::UINT16).build();
    let host = BlockLayout::new(config, &LayoutType::Paged).unwrap();
    let mut device: Vec<Vec<u8>> = vec![vec![0; layout.storage_sizes()[0]]];
    let mut pages: Vec<Vec<u8>> = vec![vec![0; host.storage_sizes()[0]]];
    let at = |b: usize, t: usize, h: usize, e: usize| {
        2 * (b * strides[0] + t * strides[1] + h * strides[2] + e * strides[3])
    };
    let elements = || {
        (0..16)
            .flat_map(move |t| (0..heads).flat_map(move |h| (0..32usize).map(move |e| (t, h, e))))
    };
    let value = |(t, h, e): (usize, usize, usize)| ((t * heads + h) * 32 + e) as u16;
    for (t, h, e) in elements() {
        let to = at(1, t, h, e);
        device[0][to..to + 2].copy_from_slice(&value((t, h, e)).to_ne_bytes());
    }
    copy_through((layout, 1), &device, (&host, 1), &mut pages);
    let untouched = device.clone();
    copy_through((&host, 1), &pages, (layout, 4), &mut device);
    for (t, h, e) in elements() {
        let from = at(4, t, h, e);
        let got = u16::from_ne_bytes([device[0][from], device[0][from + 1]]);
        assert_eq!(got, value((t, h, e)), "token {t} head {h} element {e}");
    }
    let changed = device[0].iter().zip(&untouched[0]).filter(|(a, b)| a != b).count();
    assert!(changed <= layout.block_bytes());
}

#[test]
fn tensors_of_equal_shape_round_trip_under_their_own_packing() {
    use Axis::{Block, Element, Head, Token};
    for heads in [2, 16, 1] {
        let block = 16 * heads * 32;
        let token_major = [block, heads * 32, 32, 1];
        let head_major = [block, 32, 16 * 32, 1];
        let mut packings = HashSet::new();
        for (strides, order) in [
            (token_major, [Block, Token, Head, Element]),
            (head_major, [Block, Head, Token, Element]),
        ] {
            let steps = strides.map(|s| s as i64);
            let tensor = ExternalTensor::new(0, 0, [6, 16, heads, 32], steps);
            let tensors = ExternalLayout::new(DType::UINT16, [6 * block * 2]).layer(tensor);
            let sizes = [(Token, 16), (Head, heads), (Element, 32), (Block, 6)];
            let stated = tensors.clone().axes([Block, Token, Head, Element]).build().unwrap();
            round_trip(&stated, strides, heads);
            assert!(stated.contiguous_block(0).is_some());
            let by_strides = tensors.clone().sizes(sizes).memory_order(order).build().unwrap();
            assert_eq!(by_strides.packing(), stated.packing());

            // Sizes decide unless tokens and heads number the same; strides unless there is one
            // head; nothing stated, nothing guessed.
            let ambiguous = |layout: Result<BlockLayout, LayoutError>| {
                matches!(layout, Err(LayoutError::Ambiguous { .. }))
            };
            assert_eq!(ambiguous(tensors.clone().sizes(sizes).build()), heads == 16);
            assert_eq!(ambiguous(tensors.clone().memory_order(order).build()), heads == 1);
            let error = tensors.build().unwrap_err().to_string();
            assert!(error.starts_with("axes: nothing says"), "{error}");
            packings.insert(stated.packing().unwrap().to_owned());
        }
        // With one head both are the same bytes.
        assert_eq!(packings.len(), if heads == 1 { 1 } else { 2 });
    }
}

#[test]
fn two_packings_of_one_shape_do_not_pair() {
    let axes = [Axis::Block, Axis::Token, Axis::Head, Axis::Element];
    let with = |strides: [i64; 4]| {
        let tensor = ExternalTensor::new(0, 0, [6, 16, 2, 32], strides);
        ExternalLayout::new(DType::FP16, [6 * 2048]).layer(tensor).axes(axes).build().unwrap()
    };
    let error = with([1024, 64, 32, 1]).compatible_with(&with([1024, 32, 512, 1])).unwrap_err();
    assert!(error.to_string().contains("token:16,head:2,element:32 here"), "{error}");
}

#[test]
fn views_that_interleave_are_taken_and_views_that_collide_are_not() {
    let axes = [Axis::Block, Axis::Element];
    let layers = |starts: [usize; 2], stride: i64, size: usize| {
        let tensor = |at| ExternalTensor::new(0, at, [4, 8], [stride, 1]);
        let tensors = ExternalLayout::new(DType::UINT8, [size]).layer(tensor(starts[0]));
        tensors.layer(tensor(starts[1])).axes(axes).build()
    };
    // Block-major: the layers of a block side by side, so views overlap in extent but not in bytes.
    let layout = layers([0, 8], 16, 64).unwrap();
    assert_eq!(layout.contiguous_block(2), Some(Span { storage: 0, offset: 32, len: 16 }));
    layers([0, 32], 8, 64).unwrap();
    for collision in [layers([0, 7], 16, 64), layers([0, 24], 8, 64), layers([0, 0], 16, 64)] {
        assert!(matches!(collision, Err(LayoutError::Overlap { .. })), "{collision:?}");
    }
    let error = layers([0, 8], 16, 63).unwrap_err();
    assert!(matches!(error, LayoutError::OutOfBounds { end: 64, size: 63, .. }), "{error}");
    assert!(matches!(layers([0, 8], 7, 64), Err(LayoutError::Overlap { .. })));
    for stride in [0, -8] {
        let error = layers([0, 8], stride, 64).unwrap_err();
        assert_eq!(error, LayoutError::Stride { dimension: 0, stride });
    }
}

#[test]
fn a_description_that_contradicts_itself_says_where() {
    use Axis::{Block, Element, Layer, Outer, Token};
    let new = || ExternalLayout::new(DType::UINT8, [1 << 20]);
    let tensor = |at: usize, shape: &[usize]| ExternalTensor::contiguous(0, at, shape);
    let pair = new().layer(tensor(0, &[4, 8])).layer(tensor(64, &[4, 8]));
    let cases = [
        (new(), "layer: no tensor"),
        (pair.clone().axes([Block]), "axes: 1 for a tensor of 2"),
        (pair.clone().axes([Token, Element]), "axes: no block axis"),
        (pair.clone().axes([Block, Block]), "axes: block is there twice"),
        (pair.clone().axes([Block, Element]).sizes([(Element, 9)]), "tensor: no reading"),
        (pair.clone().axes([Block, Element]).sizes([(Token, 2)]), "tensor: no reading"),
        (pair.clone().axes([Block, Element]).memory_order([Element, Block]), "tensor: no reading"),
        (pair.clone().axes([Layer, Block]), "layer: each tensor has 4 along layer"),
        (
            pair.clone().layer(tensor(128, &[4, 9])).axes([Block, Element]),
            "layer: layer 2 has shape",
        ),
        (
            pair.layer_kv(tensor(128, &[4, 8]), tensor(192, &[4, 8])).axes([Block, Element]),
            "layer: layer 2 has 2 tensor(s)",
        ),
        (new().layer(tensor(0, &[3, 4, 8])).axes([Outer, Block, Element]), "outer_dim: 3"),
        (new().layer(tensor(0, &[129, 4, 8])).axes([Layer, Block, Element]), "num_layers: 129"),
        (new().layer(tensor(0, &[0, 8])).axes([Block, Element]), "shape: 0"),
    ];
    for (description, start) in cases {
        let error = description.build().unwrap_err().to_string();
        assert!(error.starts_with(start), "{error}");
    }
}
