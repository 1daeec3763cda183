//! The address of every byte by brute force, for own, custom and external layouts.

use std::sync::Arc;

use dynamo_llm::block_manager::layout::{
    Axis, BlockLayout, ExternalLayout, ExternalTensor, LayoutConfig, LayoutError, LayoutStrategy,
    LayoutType, Place, Span, pair_runs,
};
use dynamo_llm::common::dtype::DType;
use proptest::prelude::*;

/// Storage and address of one byte.
pub(crate) type Address = (usize, usize);

/// A layout, and the address of each byte of each block in canonical order.
#[derive(Debug)]
pub(crate) struct Modelled {
    pub(crate) layout: BlockLayout,
    pub(crate) bytes: Vec<Vec<Address>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) blocks: usize,
    pub(crate) layers: usize,
    pub(crate) outer: usize,
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    pub(crate) elements: usize,
    pub(crate) dtype: DType,
    pub(crate) alignment: usize,
}

impl Shape {
    fn config(&self) -> LayoutConfig {
        LayoutConfig {
            num_blocks: self.blocks,
            num_layers: self.layers,
            outer_dim: self.outer,
            page_size: self.tokens,
            inner_dim: self.heads * self.elements,
            dtype: self.dtype,
            alignment: self.alignment,
        }
    }

    fn region(&self) -> usize {
        self.tokens * self.heads * self.elements * self.dtype.size_bytes()
    }

    pub(crate) fn count(&self, axis: Axis) -> usize {
        match axis {
            Axis::Layer => self.layers,
            Axis::Block => self.blocks,
            Axis::Outer => self.outer,
            Axis::Token => self.tokens,
            Axis::Head => self.heads,
            _ => self.elements,
        }
    }

    /// The model of a layout whose regions are contiguous and start at `start(block, layer, outer)`.
    pub(crate) fn modelled(
        &self,
        kind: &LayoutType,
        start: impl Fn(usize, usize, usize) -> Address,
    ) -> Modelled {
        let mut bytes = vec![Vec::new(); self.blocks];
        for (b, block) in bytes.iter_mut().enumerate() {
            for (l, o) in regions(self) {
                let (storage, offset) = start(b, l, o);
                block.extend((0..self.region()).map(|i| (storage, offset + i)));
            }
        }
        Modelled { layout: BlockLayout::new(self.config(), kind).unwrap(), bytes }
    }
}

fn regions(shape: &Shape) -> impl Iterator<Item = (usize, usize)> + use<> {
    let outer = shape.outer;
    (0..shape.layers).flat_map(move |l| (0..outer).map(move |o| (l, o)))
}

/// Odd blocks in one storage, even ones in another, layers backwards: no single block stride.
#[derive(Debug)]
struct EvenOdd;

impl LayoutStrategy for EvenOdd {
    fn name(&self) -> &'static str {
        "even-odd"
    }

    fn storage_sizes(&self, config: &LayoutConfig) -> Result<Vec<usize>, LayoutError> {
        let half = config.num_blocks.div_ceil(2);
        Ok(vec![half.saturating_mul(config.block_bytes()?); 2])
    }

    fn place(
        &self,
        c: &LayoutConfig,
        block: usize,
        layer: usize,
        outer: usize,
    ) -> Result<Place, LayoutError> {
        let region = (c.num_layers - 1 - layer) * c.outer_dim + outer;
        let offset = block / 2 * c.block_bytes()? + region * c.region_bytes()?;
        Ok(Place { storage: block % 2, offset })
    }
}

/// Regions where a function says, a fixed stride apart if there is one.
#[derive(Debug)]
pub(crate) struct At(
    pub(crate) fn(usize, usize) -> usize,
    pub(crate) Option<usize>,
    pub(crate) usize,
);

impl LayoutStrategy for At {
    fn name(&self) -> &'static str {
        "at"
    }

    fn storage_sizes(&self, _: &LayoutConfig) -> Result<Vec<usize>, LayoutError> {
        Ok(vec![self.2])
    }

    fn place(
        &self,
        _: &LayoutConfig,
        block: usize,
        layer: usize,
        _: usize,
    ) -> Result<Place, LayoutError> {
        Ok(Place { storage: 0, offset: (self.0)(block, layer) })
    }

    fn block_stride(&self, _: &LayoutConfig) -> Option<usize> {
        self.1
    }
}

fn own(shape: &Shape, which: usize) -> Modelled {
    let (region, block) = (shape.region(), shape.region() * shape.layers * shape.outer);
    let up = |bytes: usize, to: usize| bytes.div_ceil(to) * to;
    let s = *shape;
    let at = move |l: usize, o: usize| (l * s.outer + o) * region;
    match which {
        0 => shape.modelled(&LayoutType::FullyContiguous, |b, l, o| {
            (0, b * up(block, s.alignment) + at(l, o))
        }),
        1 => shape.modelled(&LayoutType::Paged, |b, l, o| {
            (0, b * up(block, s.alignment.max(4096)) + at(l, o))
        }),
        2 => shape.modelled(&LayoutType::LayerSeparate { outer_contiguous: true }, |b, l, o| {
            (l, (o * s.blocks + b) * up(region, s.alignment))
        }),
        3 => shape.modelled(&LayoutType::LayerSeparate { outer_contiguous: false }, |b, l, o| {
            (l, b * up(region * s.outer, s.alignment) + o * region)
        }),
        _ => shape.modelled(&LayoutType::Custom(Arc::new(EvenOdd)), |b, l, o| {
            (b % 2, b / 2 * block + at(s.layers - 1 - l, o))
        }),
    }
}

/// How somebody else might hold the same blocks.
#[derive(Clone, Debug)]
pub(crate) struct Foreign {
    /// Axes in memory, slowest first, and a gap in elements after each step.
    pub(crate) memory: Vec<(Axis, usize)>,
    /// Axes of the view.
    pub(crate) view: Vec<Axis>,
    pub(crate) layers_apart: bool,
    pub(crate) outers_apart: bool,
    pub(crate) start: usize,
}

impl Foreign {
    /// The tensors, not yet saying what their dimensions mean, and the stride of every axis.
    pub(crate) fn describe(
        &self,
        shape: &Shape,
    ) -> (ExternalLayout, Vec<Axis>, impl Fn(Axis) -> usize) {
        let mut extent = 1;
        let mut strides = Vec::new();
        for &(axis, gap) in self.memory.iter().rev() {
            strides.push((axis, extent + gap));
            extent += (shape.count(axis) - 1) * (extent + gap);
        }
        let stride = move |axis| strides.iter().find(|(a, _)| *a == axis).unwrap().1;
        let element = shape.dtype.size_bytes();
        let apart = |axis: &Axis| match axis {
            Axis::Layer => self.layers_apart,
            Axis::Outer => self.outers_apart,
            _ => false,
        };
        let axes: Vec<Axis> = self.view.iter().copied().filter(|a| !apart(a)).collect();
        let tensor = |l: usize, o: usize| {
            let first = self.start + l * stride(Axis::Layer) + o * stride(Axis::Outer);
            let dims: Vec<usize> = axes.iter().map(|&a| shape.count(a)).collect();
            let steps: Vec<i64> = axes.iter().map(|&a| stride(a) as i64).collect();
            ExternalTensor::new(0, first * element, dims, steps)
        };
        let mut tensors = ExternalLayout::new(shape.dtype, [(self.start + extent) * element]);
        for l in 0..if self.layers_apart { shape.layers } else { 1 } {
            tensors = if self.outers_apart && shape.outer == 2 {
                tensors.layer_kv(tensor(l, 0), tensor(l, 1))
            } else {
                tensors.layer(tensor(l, 0))
            };
        }
        (tensors, axes, stride)
    }

    pub(crate) fn modelled(&self, shape: &Shape) -> Modelled {
        let (tensors, axes, stride) = self.describe(shape);
        let inside: Vec<Axis> = self
            .memory
            .iter()
            .map(|&(axis, _)| axis)
            .filter(|a| matches!(a, Axis::Token | Axis::Head | Axis::Element))
            .collect();
        let (x, y, z) = (inside[0], inside[1], inside[2]);
        let element = shape.dtype.size_bytes();
        let mut bytes = vec![Vec::new(); shape.blocks];
        for (b, block) in bytes.iter_mut().enumerate() {
            for (l, o) in regions(shape) {
                let region = self.start
                    + b * stride(Axis::Block)
                    + l * stride(Axis::Layer)
                    + o * stride(Axis::Outer);
                for i in 0..shape.count(x) {
                    for j in 0..shape.count(y) {
                        for k in 0..shape.count(z) {
                            let at = region + i * stride(x) + j * stride(y) + k * stride(z);
                            block.extend((0..element).map(|e| (0, at * element + e)));
                        }
                    }
                }
            }
        }
        Modelled { layout: tensors.axes(axes).build().unwrap(), bytes }
    }
}

pub(crate) fn shapes() -> impl Strategy<Value = Shape> {
    let dtypes = prop::sample::select(vec![DType::UINT8, DType::FP16, DType::FP32]);
    (1..5usize, 1..4usize, 1..3usize, 1..4usize, 1..4usize, 1..4usize, dtypes, 0..7u32).prop_map(
        |(blocks, layers, outer, tokens, heads, elements, dtype, log)| Shape {
            blocks,
            layers,
            outer,
            tokens,
            heads,
            elements,
            dtype,
            alignment: 1 << log,
        },
    )
}

pub(crate) fn foreign() -> impl Strategy<Value = Foreign> {
    let axes = || Just(Axis::ALL.to_vec()).prop_shuffle();
    let gaps = prop::collection::vec(prop_oneof![3 => Just(0usize), 1 => 1..4usize], 6);
    (axes(), gaps, axes(), any::<bool>(), any::<bool>(), 0..5usize).prop_map(
        |(memory, gaps, view, layers_apart, outers_apart, start)| Foreign {
            memory: memory.into_iter().zip(gaps).collect(),
            view,
            layers_apart,
            outers_apart,
            start,
        },
    )
}

/// Two layouts of one logical shape, with block counts of their own.
pub(crate) fn pairs() -> impl Strategy<Value = (Modelled, Modelled)> {
    let side = || (0..10usize, foreign(), 1..5usize);
    (shapes(), side(), side()).prop_map(|(shape, a, b)| {
        let make = |(which, foreign, blocks): (usize, Foreign, usize)| {
            let shape = Shape { blocks, ..shape };
            if which < 5 { own(&shape, which) } else { foreign.modelled(&shape) }
        };
        (make(a), make(b))
    })
}

pub(crate) fn addresses(spans: &[Span]) -> Vec<Address> {
    spans.iter().flat_map(|s| (s.offset..s.end()).map(|at| (s.storage, at))).collect()
}

/// Storages filled so that neighbouring bytes differ.
pub(crate) fn memory(layout: &BlockLayout, seed: usize) -> Vec<Vec<u8>> {
    let fill = |(s, &size): (usize, &usize)| {
        (0..size).map(|i| ((i + s * 7919 + seed).wrapping_mul(0x9E37_79B1) >> 13) as u8).collect()
    };
    layout.storage_sizes().iter().enumerate().map(fill).collect()
}

pub(crate) fn copy_through(
    (from, from_block): (&BlockLayout, usize),
    src: &[Vec<u8>],
    (to, to_block): (&BlockLayout, usize),
    dst: &mut [Vec<u8>],
) {
    pair_runs(from, from_block, to, to_block, 0..from.num_layers(), |s, d| {
        dst[d.storage][d.offset..d.end()].copy_from_slice(&src[s.storage][s.offset..s.end()]);
    })
    .unwrap();
}
