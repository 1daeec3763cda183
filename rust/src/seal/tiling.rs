//! How a block is cut into tiles.
//!
//! A block is a number of *regions*, one for each (layer, outer), of equal size. Each region is cut
//! from its own start into tiles of 256 KiB, the last shorter. Tiles are numbered region by region.
//!
//! Pure arithmetic, checked once at creation: the block's size fits `usize`, so no product or sum
//! of it can wrap later.

use super::SealError;

/// Bytes of a full tile. Fixed for ever: sums on disk and on other hosts are of such tiles.
pub const TILE_BYTES: usize = 256 * 1024;

/// The tiles of every block of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SealTiling {
    regions: usize,
    region_bytes: usize,
}

/// One tile: a run of bytes inside one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Number of the tile in its block.
    pub index: usize,
    /// The region it lies in: `layer * outer_dim + outer`.
    pub region: usize,
    /// Its first byte within the region.
    pub offset: usize,
    /// Its bytes.
    pub len: usize,
}

/// The part of a run that lies in one tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The tile.
    pub tile: usize,
    /// First byte within the region.
    pub offset: usize,
    /// Bytes, at least 1.
    pub len: usize,
    /// Whether the piece reaches the tile's last byte, so that its sum is complete.
    pub ends_tile: bool,
}

impl SealTiling {
    /// The tiling of blocks of `regions` regions (layers times outer dimension) of `region_bytes`.
    ///
    /// # Errors
    ///
    /// [`SealError::InvalidTiling`] where either is 0 or the whole block exceeds the address space.
    pub fn new(regions: usize, region_bytes: usize) -> Result<Self, SealError> {
        let refuse = |field, value: usize, remedy| {
            Err(SealError::InvalidTiling { field, value: value as u64, remedy })
        };
        if regions == 0 {
            return refuse("regions", regions, "give layers times outer dimension, at least 1");
        }
        if region_bytes == 0 {
            return refuse("region_bytes", region_bytes, "give at least 1 byte");
        }
        if regions.checked_mul(region_bytes).is_none_or(|bytes| bytes > isize::MAX as usize) {
            return refuse("region_bytes", region_bytes, "make the block fit the address space");
        }
        Ok(Self { regions, region_bytes })
    }

    /// Regions of a block.
    pub fn regions(&self) -> usize {
        self.regions
    }

    /// Bytes of a region.
    pub fn region_bytes(&self) -> usize {
        self.region_bytes
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.regions * self.region_bytes
    }

    /// Tiles of a region.
    pub fn tiles_per_region(&self) -> usize {
        self.region_bytes.div_ceil(TILE_BYTES)
    }

    /// Tiles of a block, which is the number of sums in its seal.
    pub fn tiles(&self) -> usize {
        self.regions * self.tiles_per_region()
    }

    /// The tile that holds byte `offset` of `region`; `None` outside the block.
    pub fn tile_of(&self, region: usize, offset: usize) -> Option<usize> {
        let inside = region < self.regions && offset < self.region_bytes;
        inside.then(|| region * self.tiles_per_region() + offset / TILE_BYTES)
    }

    /// The tile with this number; `None` past the last.
    pub fn tile(&self, index: usize) -> Option<Tile> {
        let per_region = self.tiles_per_region();
        let region = index / per_region;
        let offset = index % per_region * TILE_BYTES;
        let len = self.region_bytes.saturating_sub(offset).min(TILE_BYTES);
        (region < self.regions).then_some(Tile { index, region, offset, len })
    }

    /// All tiles in order.
    pub fn iter(&self) -> impl Iterator<Item = Tile> + use<> {
        let tiling = *self;
        (0..tiling.tiles()).filter_map(move |index| tiling.tile(index))
    }

    /// Cuts `len` bytes of `region` from `offset` at the tiles' edges, in order. What lies outside
    /// the block is left out.
    pub fn cut(
        &self,
        region: usize,
        offset: usize,
        len: usize,
    ) -> impl Iterator<Item = Piece> + use<> {
        let tiling = *self;
        let end = offset.saturating_add(len).min(self.region_bytes);
        let mut at = offset;
        std::iter::from_fn(move || {
            let tile = tiling.tile(tiling.tile_of(region, at)?)?;
            let tile_end = tile.offset + tile.len;
            let piece_end = tile_end.min(end);
            let len = piece_end.checked_sub(at).filter(|&len| len > 0)?;
            let ends_tile = piece_end == tile_end;
            let piece = Piece { tile: tile.index, offset: at, len, ends_tile };
            at = piece_end;
            Some(piece)
        })
    }
}
