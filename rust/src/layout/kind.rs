//! The arrangements that blocks can have.

use std::fmt;

use super::config::LayoutConfig;
use super::error::{LayoutError, align, mul};
use super::map::{Interior, Map, Origin};
use super::strategy::{self, LayoutStrategy};
use crate::sync::Arc;

/// Bytes to which [`LayoutType::Paged`] aligns blocks: the page of direct I/O and of the memory
/// management unit.
pub const PAGED_ALIGNMENT: usize = 4096;

/// How the blocks of a pool are arranged in memory. Brackets list dimensions, slowest first.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum LayoutType {
    /// One storage, `[block][layer][outer][page][inner]`.
    #[default]
    FullyContiguous,
    /// One storage per layer, as inference engines allocate them.
    LayerSeparate {
        /// `true`: all K of a layer, then all V, `[outer][block][page][inner]`.
        /// `false`: K and V of a block side by side, `[block][outer][page][inner]`.
        outer_contiguous: bool,
    },
    /// As `FullyContiguous`, each block aligned and padded to [`PAGED_ALIGNMENT`]: one block is
    /// one run that can be read and written directly.
    Paged,
    /// Regions placed by a strategy.
    Custom(Arc<dyn LayoutStrategy>),
}

/// What placing the regions of a configuration gives.
pub(super) struct Placed {
    pub(super) storage_sizes: Box<[usize]>,
    pub(super) map: Map,
}

impl LayoutType {
    /// Places the regions of `config`, which is valid.
    pub(super) fn place(&self, config: &LayoutConfig) -> Result<Placed, LayoutError> {
        match self {
            Self::FullyContiguous => block_major(config, config.alignment),
            Self::Paged => block_major(config, config.alignment.max(PAGED_ALIGNMENT)),
            Self::LayerSeparate { outer_contiguous } => layer_separate(config, *outer_contiguous),
            Self::Custom(strategy) => strategy::place(&**strategy, config),
        }
    }
}

impl fmt::Display for LayoutType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FullyContiguous => f.write_str("fully contiguous"),
            Self::LayerSeparate { outer_contiguous: true } => {
                f.write_str("layer separate, outer major")
            }
            Self::LayerSeparate { outer_contiguous: false } => {
                f.write_str("layer separate, block major")
            }
            Self::Paged => f.write_str("paged"),
            Self::Custom(strategy) => write!(f, "custom {}", strategy.name()),
        }
    }
}

fn block_major(config: &LayoutConfig, alignment: usize) -> Result<Placed, LayoutError> {
    let region = config.region_bytes()?;
    let stride = align("aligned block", config.block_bytes()?, alignment)?;
    let size = mul("storage bytes", config.num_blocks, stride)?;
    let origins = (0..config.regions()).map(|r| Origin::new(0, r * region)).collect();
    Ok(Placed {
        storage_sizes: Box::new([size]),
        map: Map::affine(origins, stride, Interior::contiguous(region)),
    })
}

fn layer_separate(config: &LayoutConfig, outer_contiguous: bool) -> Result<Placed, LayoutError> {
    let region = config.region_bytes()?;
    let part = if outer_contiguous { region } else { mul("layer", config.outer_dim, region)? };
    let stride = align("aligned block", part, config.alignment)?;
    let all_blocks = mul("layer bytes", config.num_blocks, stride)?;
    let (outer_stride, size) = if outer_contiguous {
        (all_blocks, mul("storage bytes", config.outer_dim, all_blocks)?)
    } else {
        (region, all_blocks)
    };
    // All storages together must be addressable too.
    mul("bytes of all layers", config.num_layers, size)?;
    let origins = (0..config.num_layers as u32)
        .flat_map(|l| (0..config.outer_dim).map(move |o| Origin::new(l, o * outer_stride)))
        .collect();
    Ok(Placed {
        storage_sizes: vec![size; config.num_layers].into_boxed_slice(),
        map: Map::affine(origins, stride, Interior::contiguous(region)),
    })
}
