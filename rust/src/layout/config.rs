//! The numbers that describe a block, and their limits.

use super::error::{LayoutError, mul, within};
use crate::dtype::DType;

/// Tokens per block when nothing else is said.
pub const DEFAULT_PAGE_SIZE: usize = 16;
/// KV heads times head size when nothing else is said.
pub const DEFAULT_INNER_DIM: usize = 4096;
/// Layers when nothing else is said.
pub const DEFAULT_NUM_LAYERS: usize = 32;
/// K and V.
pub const DEFAULT_OUTER_DIM: usize = 2;
/// Most tokens per block.
pub const MAX_PAGE_SIZE: usize = 1024;
/// Most elements per token, layer and outer: 128 heads of 256.
pub const MAX_INNER_DIM: usize = 32768;
/// Most layers. The deepest dense models in common use have 126.
pub const MAX_NUM_LAYERS: usize = 128;
/// K and V apart; caches that fuse them, or keep one latent, have 1.
pub const MAX_OUTER_DIM: usize = 2;

/// Shape of the blocks of one pool. Plain data; [`validate`](Self::validate) checks it, and
/// [`BlockLayout::new`](super::BlockLayout::new) calls that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bon::Builder)]
pub struct LayoutConfig {
    /// Blocks, at least 1.
    pub num_blocks: usize,
    /// Layers of a block, `1..=MAX_NUM_LAYERS`.
    #[builder(default = DEFAULT_NUM_LAYERS)]
    pub num_layers: usize,
    /// Tensors of a layer, `1..=MAX_OUTER_DIM`: 2 for K and V, 1 where they are one.
    #[builder(default = DEFAULT_OUTER_DIM)]
    pub outer_dim: usize,
    /// Tokens of a block, `1..=MAX_PAGE_SIZE`.
    #[builder(default = DEFAULT_PAGE_SIZE)]
    pub page_size: usize,
    /// Elements of a token in one tensor (KV heads x head size), `1..=MAX_INNER_DIM`.
    #[builder(default = DEFAULT_INNER_DIM)]
    pub inner_dim: usize,
    /// Element type.
    #[builder(default = DType::FP16)]
    pub dtype: DType,
    /// Where a block, or its part in a storage, may start: multiples of this many bytes from the
    /// start of the storage. A power of two; 1 packs blocks without gaps.
    #[builder(default = 1)]
    pub alignment: usize,
}

impl LayoutConfig {
    /// Checks every field against its limits and the size of a block against the address space.
    pub fn validate(&self) -> Result<(), LayoutError> {
        within("num_blocks", self.num_blocks, 1, usize::MAX)?;
        within("num_layers", self.num_layers, 1, MAX_NUM_LAYERS)?;
        within("outer_dim", self.outer_dim, 1, MAX_OUTER_DIM)?;
        within("page_size", self.page_size, 1, MAX_PAGE_SIZE)?;
        within("inner_dim", self.inner_dim, 1, MAX_INNER_DIM)?;
        if !self.alignment.is_power_of_two() {
            return Err(LayoutError::Alignment { value: self.alignment });
        }
        self.block_bytes().map(drop)
    }

    /// Regions of a block: one per layer and outer.
    pub(super) fn regions(&self) -> usize {
        self.num_layers * self.outer_dim
    }

    /// Bytes of one region: `page_size x inner_dim x dtype`.
    pub fn region_bytes(&self) -> Result<usize, LayoutError> {
        let elements = mul("page_size x inner_dim", self.page_size, self.inner_dim)?;
        mul("region bytes", elements, self.dtype.size_bytes())
    }

    /// Bytes of one block without padding: `num_layers x outer_dim` regions.
    pub fn block_bytes(&self) -> Result<usize, LayoutError> {
        let regions = mul("num_layers x outer_dim", self.num_layers, self.outer_dim)?;
        mul("block bytes", regions, self.region_bytes()?)
    }
}
