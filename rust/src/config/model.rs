//! The shape of a model's cache and what identifies the model.

use bon::Builder;
use serde::{Deserialize, Serialize};

use crate::{
    dtype::DType,
    layout::{
        DEFAULT_INNER_DIM, DEFAULT_NUM_LAYERS, DEFAULT_OUTER_DIM, DEFAULT_PAGE_SIZE, LayoutConfig,
    },
};

/// Geometry of one block, and the names that keep models apart.
///
/// ```
/// use dynamo_llm::block_manager::KvManagerModelConfig;
///
/// let model = KvManagerModelConfig::builder().num_layers(4).page_size(16).inner_dim(1024).build();
/// assert_eq!(model.block_bytes(), Some(4 * 2 * 16 * 1024 * 2));
/// ```
///
/// Building cannot fail; whether the numbers are in range is part of
/// [`Config::validate`](super::Config::validate), together with everything else.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Builder)]
#[builder(on(String, into))]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// Layers that share the block table, 1 to 128.
    pub num_layers: usize,
    /// 2 where K and V lie apart, 1 where they are one tensor (a compressed latent, say).
    #[builder(default = DEFAULT_OUTER_DIM)]
    pub outer_dim: usize,
    /// Tokens in a block, 1 to 1024.
    pub page_size: usize,
    /// Elements per token, layer and outer index: KV heads x head size of one rank, 1 to 32768.
    pub inner_dim: usize,
    /// Type of one element; FP16 when not stated.
    #[builder(default = DType::FP16)]
    pub dtype: DType,
    /// Name of the model, as its users know it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Revision or digest of the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Adapter that is merged into the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
}

impl ModelConfig {
    /// Bytes of one block; `None` when the product does not fit a `usize` (it always does within
    /// the limits of the single fields).
    pub fn block_bytes(&self) -> Option<usize> {
        self.num_layers
            .checked_mul(self.outer_dim)?
            .checked_mul(self.page_size)?
            .checked_mul(self.inner_dim)?
            .checked_mul(self.dtype.size_bytes())
    }

    /// The shape of a tier of `num_blocks` such blocks, without gaps between them.
    pub fn layout(&self, num_blocks: usize) -> LayoutConfig {
        LayoutConfig {
            num_blocks,
            num_layers: self.num_layers,
            outer_dim: self.outer_dim,
            page_size: self.page_size,
            inner_dim: self.inner_dim,
            dtype: self.dtype,
            alignment: 1,
        }
    }
}

impl Default for ModelConfig {
    /// The stated defaults: 32 layers, K and V apart, 16 tokens, 4096 elements, FP16, no names.
    fn default() -> Self {
        Self::builder()
            .num_layers(DEFAULT_NUM_LAYERS)
            .page_size(DEFAULT_PAGE_SIZE)
            .inner_dim(DEFAULT_INNER_DIM)
            .build()
    }
}
