//! Layouts that users bring.

use std::fmt;

use super::config::LayoutConfig;
use super::error::{LayoutError, mul, within};
use super::kind::Placed;
use super::map::{Dim, Interior, Map, Origin};
use super::overlap::{first_collision, first_unnested};

/// Most regions (`num_blocks x num_layers x outer_dim`) of a strategy without a block stride.
/// Each costs 16 bytes for the life of the layout and as much again while it is built: 256 MiB at
/// the limit.
pub const MAX_PLACED_REGIONS: usize = 1 << 24;

/// Where a region starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index into [`LayoutStrategy::storage_sizes`].
    pub storage: usize,
    /// First byte of the region in that storage.
    pub offset: usize,
}

/// Decides where regions start, for arrangements that no built-in layout has: blocks spread over
/// NUMA nodes, layers grouped by device.
///
/// Asked only while a layout is built, which then keeps the answers: a strategy need not be fast,
/// and cannot change its mind. All answers are checked (inside their storage, no two regions
/// sharing a byte). A region is contiguous; tensors with strides inside are
/// [`ExternalLayout`](super::ExternalLayout)s.
pub trait LayoutStrategy: fmt::Debug + Send + Sync {
    /// The name for logs and messages.
    fn name(&self) -> &str;

    /// Bytes of each storage that blocks of `config` need.
    fn storage_sizes(&self, config: &LayoutConfig) -> Result<Vec<usize>, LayoutError>;

    /// Where the region (`layer`, `outer`) of `block` starts.
    fn place(
        &self,
        config: &LayoutConfig,
        block: usize,
        layer: usize,
        outer: usize,
    ) -> Result<Place, LayoutError>;

    /// The bytes from each region to the same region of the next block, where that is one number.
    /// Then only block 0 is asked for, and any number of blocks costs the same; otherwise at most
    /// [`MAX_PLACED_REGIONS`] regions are accepted.
    fn block_stride(&self, config: &LayoutConfig) -> Option<usize> {
        let _ = config;
        None
    }
}

/// Asks `strategy` for everything and checks the answers; `config` is valid.
pub(super) fn place(
    strategy: &dyn LayoutStrategy,
    config: &LayoutConfig,
) -> Result<Placed, LayoutError> {
    let storage_sizes = strategy.storage_sizes(config)?.into_boxed_slice();
    let region = config.region_bytes()?;
    let stride = strategy.block_stride(config);
    let blocks = if stride.is_some() { 1 } else { config.num_blocks };
    let regions = mul("num_blocks x regions", blocks, config.regions())?;
    within("num_blocks x num_layers x outer_dim", regions, 1, MAX_PLACED_REGIONS)?;

    let mut origins = Vec::with_capacity(regions);
    for block in 0..blocks {
        for layer in 0..config.num_layers {
            for outer in 0..config.outer_dim {
                let Place { storage, offset } = strategy.place(config, block, layer, outer)?;
                // An index past u32 is past the storages too: the check below says so.
                let storage = u32::try_from(storage).unwrap_or(u32::MAX);
                origins.push(Origin::new(storage, offset));
            }
        }
    }
    let origins = origins.into_boxed_slice();
    let map = match stride {
        Some(stride) => Map::affine(origins, stride, Interior::contiguous(region)),
        None => Map::table(origins, config.regions(), region),
    };
    let name = |index: usize| {
        let (block, region) = (index / config.regions(), index % config.regions());
        let (layer, outer) = (region / config.outer_dim, region % config.outer_dim);
        format!("{}: (block {block}, layer {layer}, outer {outer})", strategy.name())
    };
    map.check_bounds(config.num_blocks, &storage_sizes, name)?;
    let collision = match stride {
        Some(stride) => collision_of_strided(&map, Dim { count: config.num_blocks, stride }),
        None => collision_of_table(&map),
    };
    match collision {
        None => Ok(Placed { storage_sizes, map }),
        Some((a, b)) if a == b => {
            let second = "the same region of the next block".to_owned();
            Err(LayoutError::Overlap { first: name(a), second })
        }
        Some((a, b)) => Err(LayoutError::Overlap { first: name(a), second: name(b) }),
    }
}

/// Two regions that collide in some blocks; one region twice if it collides with its next.
fn collision_of_strided(map: &Map, blocks: Dim) -> Option<(usize, usize)> {
    let run = map.interior().run();
    if first_unnested(&[blocks], run).is_some() {
        return Some((0, 0));
    }
    first_collision(map.origins(), &[blocks], run)
}

/// Two regions that collide, found among neighbours in address order.
fn collision_of_table(map: &Map) -> Option<(usize, usize)> {
    let origins = map.origins();
    let run = map.interior().run();
    // Regions number at most MAX_PLACED_REGIONS, so a u32 holds each index.
    let mut by_address: Vec<u32> = (0..origins.len() as u32).collect();
    by_address.sort_unstable_by_key(|&i| {
        let origin = &origins[i as usize];
        (origin.storage, origin.offset)
    });
    by_address.windows(2).find_map(|pair| {
        let (first, second) = (pair[0] as usize, pair[1] as usize);
        let (a, b) = (&origins[first], &origins[second]);
        (a.storage == b.storage && b.offset - a.offset < run).then_some((first, second))
    })
}
