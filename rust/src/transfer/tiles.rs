//! Tile sums of a block as its bytes go by in canonical order.
#![allow(unsafe_code)]

use super::BlockMemory;
use crate::{
    eviction::SlotId,
    layout::LayoutError,
    seal::{Crc, SealTiling},
};

/// Collects the sums of one block's tiles while a copier walks over it.
pub(super) struct TileSums {
    tiling: SealTiling,
    /// Bytes of the block that have gone by.
    at: usize,
    crc: Crc,
    sums: Vec<u64>,
}

impl TileSums {
    pub(super) fn new(tiling: SealTiling) -> Self {
        Self { tiling, at: 0, crc: Crc::new(), sums: Vec::with_capacity(tiling.tiles()) }
    }

    /// Feeds the next `len` bytes of the block to `step(offset, length, crc)`, in pieces that lie
    /// within one tile; `offset` counts from the first of these bytes.
    pub(super) fn feed(&mut self, len: usize, mut step: impl FnMut(usize, usize, &mut Crc)) {
        let start = self.at;
        let end = start + len;
        while self.at < end {
            let region_bytes = self.tiling.region_bytes();
            let (region, offset) = (self.at / region_bytes, self.at % region_bytes);
            let before = self.at;
            for piece in self.tiling.cut(region, offset, end - self.at) {
                step(self.at - start, piece.len, &mut self.crc);
                self.at += piece.len;
                if piece.ends_tile {
                    self.sums.push(self.crc.take());
                }
            }
            // Past the block there is nothing to sum; a plan never gets there.
            if self.at == before {
                return;
            }
        }
    }

    pub(super) fn finish(self) -> Box<[u64]> {
        self.sums.into_boxed_slice()
    }
}

/// The tile sums of a block where it lies, nothing copied.
///
/// # Errors
/// [`LayoutError`] when there is no such block.
///
/// # Safety
/// Nobody writes the slot during the call, and the memory is accessible.
pub(crate) unsafe fn sum_block(
    memory: &BlockMemory,
    block: SlotId,
) -> Result<Box<[u64]>, LayoutError> {
    let layout = memory.layout();
    let mut sums = TileSums::new(memory.tiling());
    for span in layout.spans(block as usize, 0..layout.num_layers())? {
        let start = memory.address(span);
        sums.feed(span.len, |offset, len, crc| {
            // SAFETY: the span lies within the memory, which outlives the call; the caller
            // guarantees that it is accessible and not written meanwhile.
            crc.update(unsafe { std::slice::from_raw_parts(start.add(offset), len) });
        });
    }
    Ok(sums.finish())
}
