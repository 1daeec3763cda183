//! A layout that was checked.

use std::fmt;
use std::ops::Range;

use super::config::LayoutConfig;
use super::error::LayoutError;
use super::kind::{LayoutType, Placed};
use super::map::Map;
use super::reading::Axis;
use super::spans::{Span, Spans};
use crate::dtype::DType;
use crate::sync::Arc;

/// Where every byte of every block of a pool lies. Immutable, checked when built, cheap to clone.
#[derive(Clone)]
pub struct BlockLayout(Arc<Inner>);

#[derive(Clone)]
pub(super) struct Inner {
    /// The arrangement in words.
    pub(super) name: String,
    /// Logical shape. An external tensor may pass the limits of fields that its owner chose.
    pub(super) shape: LayoutConfig,
    pub(super) region_bytes: usize,
    pub(super) block_bytes: usize,
    pub(super) packing: Option<String>,
    pub(super) storage_sizes: Box<[usize]>,
    pub(super) map: Map,
}

impl BlockLayout {
    /// Arranges blocks of `config` as `layout_type` says.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](LayoutError::OutOfRange) and [`Alignment`](LayoutError::Alignment) for a
    /// field, [`Overflow`](LayoutError::Overflow) when the storages would pass the address space,
    /// and what a custom strategy gives reason for.
    pub fn new(config: LayoutConfig, layout_type: &LayoutType) -> Result<Self, LayoutError> {
        config.validate()?;
        let Placed { storage_sizes, map } = layout_type.place(&config)?;
        Ok(Self::from_inner(Inner {
            name: layout_type.to_string(),
            shape: config,
            region_bytes: config.region_bytes()?,
            block_bytes: config.block_bytes()?,
            packing: None,
            storage_sizes,
            map,
        }))
    }

    pub(super) fn from_inner(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }

    /// Blocks.
    pub fn num_blocks(&self) -> usize {
        self.0.shape.num_blocks
    }

    /// Layers of a block.
    pub fn num_layers(&self) -> usize {
        self.0.shape.num_layers
    }

    /// Tensors of a layer: 2 for K and V, 1 where they are one.
    pub fn outer_dim(&self) -> usize {
        self.0.shape.outer_dim
    }

    /// Tokens of a block; 1 for external tensors whose token axis was not stated.
    pub fn page_size(&self) -> usize {
        self.0.shape.page_size
    }

    /// Elements of a token in one layer and outer.
    pub fn inner_dim(&self) -> usize {
        self.0.shape.inner_dim
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.0.shape.dtype
    }

    /// Bytes of each storage, padding included: one, or one per layer for
    /// [`LayoutType::LayerSeparate`], or as a strategy or the owner of external tensors says.
    pub fn storage_sizes(&self) -> &[usize] {
        &self.0.storage_sizes
    }

    /// Payload bytes of a block: layers x outer x page x inner x dtype.
    pub fn block_bytes(&self) -> usize {
        self.0.block_bytes
    }

    /// Payload bytes of one (layer, outer) of a block.
    pub fn region_bytes(&self) -> usize {
        self.0.region_bytes
    }

    /// The order of axes inside a region, slowest first with their sizes, such as
    /// `head:2,token:16,element:256`, where the owner of external tensors stated it. `None` for
    /// layouts that hold whatever bytes they are given.
    ///
    /// Bytes are moved as they lie, so the same numbers packed in another order are other bytes.
    /// This belongs into the fingerprint: two packings never share a cache.
    pub fn packing(&self) -> Option<&str> {
        self.0.packing.as_deref()
    }

    /// The same layout, for blocks whose regions are packed like that: what a tier holds for
    /// another one, whose owner stated it.
    #[must_use]
    pub fn packed(&self, packing: impl Into<String>) -> Self {
        Self::from_inner(Inner { packing: Some(packing.into()), ..(*self.0).clone() })
    }

    /// Whether a region is its tokens in turn, each its `inner_dim` elements: what a tensor of
    /// (tokens, elements) shows. Where nothing is stated it is.
    pub fn is_token_major(&self) -> bool {
        let Some(packing) = self.packing() else { return true };
        let mut axes = packing.split(',').filter_map(|axis| axis.split(':').next());
        let ordered = [Axis::Token, Axis::Head, Axis::Element].map(Axis::name);
        let mut next = ordered.iter();
        let tokens_apart = self.page_size() == 1 || packing.starts_with(ordered[0]);
        tokens_apart && axes.all(|axis| next.any(|&name| name == axis))
    }

    /// The byte runs of `layers` of `block` in canonical order (layer, outer, region), as long as
    /// they can be. No layers, no runs.
    #[inline]
    pub fn spans(&self, block: usize, layers: Range<usize>) -> Result<Spans<'_>, LayoutError> {
        let num_layers = self.num_layers();
        if layers.start > layers.end {
            return Err(LayoutError::InvalidLayerIndex { layer: layers.end, num_layers });
        }
        if layers.end > num_layers {
            return Err(LayoutError::InvalidLayerIndex { layer: layers.end - 1, num_layers });
        }
        let outer_dim = self.outer_dim();
        self.regions(block, layers.start * outer_dim..layers.end * outer_dim)
    }

    /// The byte runs of one (layer, outer) of `block`.
    #[inline]
    pub fn region_spans(
        &self,
        block: usize,
        layer: usize,
        outer: usize,
    ) -> Result<Spans<'_>, LayoutError> {
        let (num_layers, outer_dim) = (self.num_layers(), self.outer_dim());
        if layer >= num_layers {
            return Err(LayoutError::InvalidLayerIndex { layer, num_layers });
        }
        if outer >= outer_dim {
            return Err(LayoutError::InvalidOuterIndex { outer, outer_dim });
        }
        let region = layer * outer_dim + outer;
        self.regions(block, region..region + 1)
    }

    /// The whole payload of `block` if it is one run; `None` if it is several, or if there is no
    /// such block.
    pub fn contiguous_block(&self, block: usize) -> Option<Span> {
        let mut spans = self.spans(block, 0..self.num_layers()).ok()?;
        spans.next().filter(|span| span.len == self.block_bytes())
    }

    /// Whether blocks of both layouts hold the same bytes in canonical order, so that one can be
    /// copied into the other.
    ///
    /// # Errors
    ///
    /// [`LayoutError::Incompatible`] naming what differs: layers, outer dimension, bytes of a
    /// region, or the packing where both state one. How many blocks there are does not matter.
    pub fn compatible_with(&self, other: &BlockLayout) -> Result<(), LayoutError> {
        let differ = |field, left: &dyn fmt::Display, right: &dyn fmt::Display| {
            Err(LayoutError::Incompatible {
                field,
                left: left.to_string(),
                right: right.to_string(),
            })
        };
        let sizes = [
            ("num_layers", self.num_layers(), other.num_layers()),
            ("outer_dim", self.outer_dim(), other.outer_dim()),
            ("region bytes", self.region_bytes(), other.region_bytes()),
        ];
        for (field, left, right) in sizes {
            if left != right {
                return differ(field, &left, &right);
            }
        }
        match (self.packing(), other.packing()) {
            (Some(left), Some(right)) if left != right => differ("packing", &left, &right),
            _ => Ok(()),
        }
    }

    /// Spans of a range of regions that exist, of a block that may not.
    #[inline]
    fn regions(&self, block: usize, regions: Range<usize>) -> Result<Spans<'_>, LayoutError> {
        let num_blocks = self.num_blocks();
        if block >= num_blocks {
            return Err(LayoutError::InvalidBlockIndex { block, num_blocks });
        }
        Ok(Spans::new(&self.0.map, block, regions, self.0.region_bytes))
    }
}

/// One line for logs.
impl fmt::Display for BlockLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LayoutConfig { num_blocks, num_layers, outer_dim, page_size, inner_dim, dtype, .. } =
            self.0.shape;
        write!(
            f,
            "{}: {num_blocks} blocks of {num_layers} layers x {outer_dim} x {page_size} tokens x \
             {inner_dim} {dtype} = {} bytes each, {} storage(s) of {} bytes in all",
            self.0.name,
            self.block_bytes(),
            self.storage_sizes().len(),
            self.storage_sizes().iter().map(|&size| size as u128).sum::<u128>(),
        )?;
        match self.packing() {
            Some(packing) => write!(f, ", packed {packing}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for BlockLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockLayout({self})")
    }
}
