//! Blocks inside tensors that somebody else allocated.
//!
//! A tensor is described by where it starts, its shape and its strides, and by what its owner
//! states about its dimensions (see [`ExternalLayout::axes`], [`sizes`](ExternalLayout::sizes),
//! [`memory_order`](ExternalLayout::memory_order)). Layers may be one tensor each or an axis of
//! one; K and V likewise.
//!
//! The bytes inside a region are opaque. They are walked in ascending address order, so that a
//! region which is one run stays one run whatever view its owner holds of it; the order of axes
//! that this means is [`BlockLayout::packing`].

use super::block::{BlockLayout, Inner};
use super::config::{LayoutConfig, MAX_NUM_LAYERS, MAX_OUTER_DIM};
use super::error::{LayoutError, add, mul, within};
use super::map::{Dim, Interior, Map, Origin};
use super::overlap::{first_collision, first_unnested};
use super::reading::{Axis, Reading, Statement, describe};
use crate::dtype::DType;

/// One strided tensor in a storage. Shape and strides are in elements, as array libraries and
/// `DLPack` give them; the stride of a dimension of size 1 is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalTensor {
    storage: usize,
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<i64>,
}

impl ExternalTensor {
    /// A tensor whose first element is `offset` bytes into `storage`.
    pub fn new(
        storage: usize,
        offset: usize,
        shape: impl Into<Vec<usize>>,
        strides: impl Into<Vec<i64>>,
    ) -> Self {
        Self { storage, offset, shape: shape.into(), strides: strides.into() }
    }

    /// A tensor without gaps, the last dimension fastest.
    pub fn contiguous(storage: usize, offset: usize, shape: impl Into<Vec<usize>>) -> Self {
        let shape = shape.into();
        let mut strides = vec![1_i64; shape.len()];
        for dim in (1..shape.len()).rev() {
            // A stride that saturates fails the bounds check of `build`.
            let count = i64::try_from(shape[dim]).unwrap_or(i64::MAX);
            strides[dim - 1] = strides[dim].saturating_mul(count);
        }
        Self { storage, offset, shape, strides }
    }

    /// Whether both describe the same pattern of elements, each from its own start.
    fn same_pattern(&self, other: &Self) -> bool {
        let strides = || self.strides.iter().zip(&other.strides);
        self.shape == other.shape
            && self.strides.len() == other.strides.len()
            && self.shape.iter().zip(strides()).all(|(&n, (a, b))| n == 1 || a == b)
    }
}

/// Describes external tensors and builds their [`BlockLayout`].
///
/// ```
/// use dynamo_llm::block_manager::layout::{Axis, ExternalLayout, ExternalTensor};
/// use dynamo_llm::common::dtype::DType;
///
/// // Two layers of 8 blocks, 16 tokens, 2 heads of 64; the storage is head-major, the view not.
/// let layer = 8 * 2 * 16 * 64;
/// let view = |l| ExternalTensor::new(0, l * layer * 2, [8, 16, 2, 64], [2048, 64, 1024, 1]);
/// let layout = ExternalLayout::new(DType::FP16, [2 * layer * 2])
///     .layer(view(0))
///     .layer(view(1))
///     .axes([Axis::Block, Axis::Token, Axis::Head, Axis::Element])
///     .build()?;
/// assert_eq!(layout.packing(), Some("head:2,token:16,element:64"));
/// assert_eq!(layout.spans(3, 0..2)?.count(), 2); // one run per layer
/// # Ok::<(), dynamo_llm::block_manager::LayoutError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ExternalLayout {
    dtype: DType,
    storage_sizes: Vec<usize>,
    /// Per layer: one tensor, or K and V.
    layers: Vec<Vec<ExternalTensor>>,
    statement: Statement,
}

impl ExternalLayout {
    /// Tensors of `dtype` in memory regions of these many bytes. Opaque bytes are
    /// [`DType::UINT8`].
    pub fn new(dtype: DType, storage_sizes: impl Into<Vec<usize>>) -> Self {
        let (storage_sizes, statement) = (storage_sizes.into(), Statement::default());
        Self { dtype, storage_sizes, layers: Vec::new(), statement }
    }

    /// Adds the tensor of the next layer, or the one tensor of all layers.
    #[must_use]
    pub fn layer(mut self, tensor: ExternalTensor) -> Self {
        self.layers.push(vec![tensor]);
        self
    }

    /// Adds the next layer (or all layers) as two tensors, K and V.
    #[must_use]
    pub fn layer_kv(mut self, k: ExternalTensor, v: ExternalTensor) -> Self {
        self.layers.push(vec![k, v]);
        self
    }

    /// States what each dimension counts. Always sufficient.
    #[must_use]
    pub fn axes(mut self, axes: impl Into<Vec<Axis>>) -> Self {
        self.statement.axes = Some(axes.into());
        self
    }

    /// States how long axes of the tensors are. Beside [`axes`](Self::axes) a check; without it,
    /// sufficient where only one assignment of axes to dimensions has these sizes. An axis stated
    /// to have size 1 may have no dimension.
    #[must_use]
    pub fn sizes(mut self, sizes: impl Into<Vec<(Axis, usize)>>) -> Self {
        self.statement.sizes = sizes.into();
        self
    }

    /// States the order of the axes in memory, largest stride first: the dimensions then follow
    /// from the strides, except where one of size 1 could be either of two axes.
    #[must_use]
    pub fn memory_order(mut self, order: impl Into<Vec<Axis>>) -> Self {
        self.statement.memory_order = Some(order.into());
        self
    }

    /// Checks the description and builds the layout.
    ///
    /// # Errors
    ///
    /// [`Ambiguous`](LayoutError::Ambiguous) where what is stated fits two readings;
    /// [`Description`](LayoutError::Description) where it fits none or tensors differ;
    /// [`Stride`](LayoutError::Stride), [`Overlap`](LayoutError::Overlap),
    /// [`OutOfBounds`](LayoutError::OutOfBounds), [`OutOfRange`](LayoutError::OutOfRange) and
    /// [`Overflow`](LayoutError::Overflow) for the numbers.
    pub fn build(&self) -> Result<BlockLayout, LayoutError> {
        let reading = self.read_tensors()?;
        let shape = self.shape(&reading)?;
        let dims = ByteDims::new(&reading, self.dtype.size_bytes())?;
        let region_bytes = dims.region_bytes()?;
        let map = self.map(&shape, &dims)?;
        Ok(BlockLayout::from_inner(Inner {
            name: "external".to_owned(),
            region_bytes,
            block_bytes: mul("block bytes", shape.regions(), region_bytes)?,
            shape,
            packing: Some(dims.packing()),
            storage_sizes: self.storage_sizes.clone().into_boxed_slice(),
            map,
        }))
    }

    /// The reading that all tensors share.
    fn read_tensors(&self) -> Result<Reading, LayoutError> {
        let Some(first) = self.layers.first().and_then(|layer| layer.first()) else {
            return Err(describe("layer", "no tensor was given; add one per layer".to_owned()));
        };
        let parts = self.layers[0].len();
        for (index, layer) in self.layers.iter().enumerate() {
            if layer.len() != parts {
                let reason = format!(
                    "layer {index} has {} tensor(s), layer 0 has {parts}; give every layer as one \
                     tensor or every layer as K and V",
                    layer.len(),
                );
                return Err(describe("layer", reason));
            }
            if let Some(other) = layer.iter().find(|tensor| !tensor.same_pattern(first)) {
                let reason = format!(
                    "layer {index} has shape {:?} and strides {:?}, layer 0 {:?} and {:?}; \
                     describe layers that differ as a layout of their own",
                    other.shape, other.strides, first.shape, first.strides,
                );
                return Err(describe("layer", reason));
            }
        }
        let reading = self.statement.read(&first.shape, &first.strides)?;
        let tensors = [(Axis::Layer, self.layers.len()), (Axis::Outer, parts)];
        for (axis, tensors) in tensors {
            let count = reading.count(axis);
            if count > 1 && tensors > 1 {
                let reason = format!(
                    "each tensor has {count} along {axis}, and there are {tensors} tensors for \
                     it; use the axis or separate tensors, not both",
                );
                return Err(describe("layer", reason));
            }
        }
        Ok(reading)
    }

    /// The logical shape, within the limits of layers and outer dimension.
    fn shape(&self, reading: &Reading) -> Result<LayoutConfig, LayoutError> {
        let num_layers = reading.count(Axis::Layer).max(self.layers.len());
        let outer_dim = reading.count(Axis::Outer).max(self.layers[0].len());
        let (heads, elements) = (reading.count(Axis::Head), reading.count(Axis::Element));
        Ok(LayoutConfig {
            num_blocks: reading.count(Axis::Block),
            num_layers: within("num_layers", num_layers, 1, MAX_NUM_LAYERS)?,
            outer_dim: within("outer_dim", outer_dim, 1, MAX_OUTER_DIM)?,
            page_size: reading.count(Axis::Token),
            inner_dim: mul("heads x elements", heads, elements)?,
            dtype: self.dtype,
            alignment: 1,
        })
    }

    /// Places the regions, and checks that they lie in their storages and share no byte.
    fn map(&self, shape: &LayoutConfig, dims: &ByteDims) -> Result<Map, LayoutError> {
        let mut origins = Vec::with_capacity(shape.regions());
        for layer in 0..shape.num_layers {
            for outer in 0..shape.outer_dim {
                let tensors = self.layers.get(layer).unwrap_or(&self.layers[0]);
                let tensor = tensors.get(outer).unwrap_or(&tensors[0]);
                let step = add(
                    "offset of a region",
                    mul("offset of a layer", layer, dims.layer_stride)?,
                    mul("offset of an outer", outer, dims.outer_stride)?,
                )?;
                let offset = add("offset of a region", tensor.offset, step)?;
                // An index past u32 is past the storages too: the check below says so.
                let storage = u32::try_from(tensor.storage).unwrap_or(u32::MAX);
                origins.push(Origin::new(storage, offset));
            }
        }
        let map = Map::affine(origins.into_boxed_slice(), dims.block.stride, dims.interior());
        let name = |index: usize| {
            format!("(layer {}, outer {})", index / shape.outer_dim, index % shape.outer_dim)
        };
        map.check_bounds(shape.num_blocks, &self.storage_sizes, name)?;

        let (axes, steps) = dims.block_and_interior();
        if let Some(index) = first_unnested(&steps, dims.element) {
            return Err(LayoutError::Overlap {
                first: format!("steps of {} bytes along {}", steps[index].stride, axes[index]),
                second: "what lies between them".to_owned(),
            });
        }
        match first_collision(map.origins(), &steps, dims.element) {
            Some((a, b)) => Err(LayoutError::Overlap { first: name(a), second: name(b) }),
            None => Ok(map),
        }
    }
}

/// A reading in bytes.
struct ByteDims {
    element: usize,
    layer_stride: usize,
    outer_stride: usize,
    block: Dim,
    /// Axes inside a region by stride, largest first; single ones left out.
    inside: Vec<(Axis, Dim)>,
}

impl ByteDims {
    fn new(reading: &Reading, element: usize) -> Result<Self, LayoutError> {
        let dim = |axis: Axis| -> Result<Dim, LayoutError> {
            // Positive, or 0 on a single item: checked when the tensor was read.
            let stride = reading.stride(axis).unsigned_abs() as usize;
            Ok(Dim { count: reading.count(axis), stride: mul("stride", stride, element)? })
        };
        let mut inside = Vec::new();
        for axis in [Axis::Token, Axis::Head, Axis::Element] {
            inside.push((axis, dim(axis)?));
        }
        inside.retain(|(_, dim)| dim.count > 1);
        inside.sort_by_key(|(_, dim)| std::cmp::Reverse(dim.stride));
        Ok(Self {
            element,
            layer_stride: dim(Axis::Layer)?.stride,
            outer_stride: dim(Axis::Outer)?.stride,
            block: dim(Axis::Block)?,
            inside,
        })
    }

    fn region_bytes(&self) -> Result<usize, LayoutError> {
        self.inside
            .iter()
            .try_fold(self.element, |bytes, (_, dim)| mul("region bytes", bytes, dim.count))
    }

    fn interior(&self) -> Interior {
        let dims: Vec<Dim> = self.inside.iter().map(|&(_, dim)| dim).collect();
        Interior::strided(self.element, &dims)
    }

    /// All axes that the regions of one (layer, outer) repeat along, largest stride first.
    fn block_and_interior(&self) -> (Vec<Axis>, Vec<Dim>) {
        let mut all = self.inside.clone();
        if self.block.count > 1 {
            all.push((Axis::Block, self.block));
        }
        all.sort_by_key(|(_, dim)| std::cmp::Reverse(dim.stride));
        all.into_iter().unzip()
    }

    fn packing(&self) -> String {
        if self.inside.is_empty() {
            return format!("{}:1", Axis::Element);
        }
        let axes: Vec<String> =
            self.inside.iter().map(|(axis, dim)| format!("{axis}:{}", dim.count)).collect();
        axes.join(",")
    }
}
