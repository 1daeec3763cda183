//! The one form that all layouts take: starts of regions, distance of blocks, shape of a region.

use super::error::{LayoutError, add, mul};

/// Axes inside a region: tokens, heads, elements.
pub(super) const MAX_DIMS: usize = 3;

/// `count` steps of `stride` bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dim {
    pub(super) count: usize,
    pub(super) stride: usize,
}

/// Start of one region. 16 bytes: a table layout keeps one per region of every block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) offset: usize,
    pub(super) storage: u32,
    /// Regions, this one included, that follow each other without a gap in canonical order.
    /// Meaningful for contiguous regions only; makes a walk cost what it yields.
    pub(super) run: u32,
}

impl Origin {
    pub(super) fn new(storage: u32, offset: usize) -> Self {
        Self { offset, storage, run: 1 }
    }
}

/// How the bytes of one region lie relative to its start: runs of `run` bytes, repeated along
/// `dims`, innermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interior {
    run: usize,
    dims: [Dim; MAX_DIMS],
    len: usize,
}

impl Interior {
    pub(super) fn contiguous(bytes: usize) -> Self {
        Self { run: bytes, dims: [Dim::default(); MAX_DIMS], len: 0 }
    }

    /// From axes sorted by stride, largest first, over elements of `element` bytes; the bytes of
    /// all elements are addressable. Axes that continue each other without a gap become one.
    pub(super) fn strided(element: usize, axes: &[Dim]) -> Self {
        let mut interior = Self::contiguous(element);
        for &axis in axes.iter().rev().filter(|axis| axis.count > 1) {
            let dims = &mut interior.dims[..interior.len];
            match dims.last_mut() {
                None if axis.stride == interior.run => interior.run *= axis.count,
                Some(last) if Some(axis.stride) == last.count.checked_mul(last.stride) => {
                    last.count *= axis.count;
                }
                _ => {
                    interior.dims[interior.len] = axis;
                    interior.len += 1;
                }
            }
        }
        interior
    }

    pub(super) fn is_contiguous(&self) -> bool {
        self.len == 0
    }

    pub(super) fn run(&self) -> usize {
        self.run
    }

    pub(super) fn dims(&self) -> &[Dim] {
        &self.dims[..self.len]
    }

    /// Bytes from the first to the last of a region, gaps included.
    fn extent(&self) -> Result<usize, LayoutError> {
        self.dims().iter().try_fold(self.run, |extent, dim| {
            add("region extent", extent, mul("region extent", dim.count - 1, dim.stride)?)
        })
    }

    /// Whether a step along some axis lands where the last run inside the step before it ended.
    fn runs_touch(&self) -> bool {
        let mut extent = self.run as u128;
        self.dims().iter().any(|dim| {
            let touches = dim.stride as u128 == extent;
            extent += (dim.count as u128 - 1) * dim.stride as u128;
            touches
        })
    }
}

/// Where every region of every block is; all bytes addressable once `check_bounds` has passed.
#[derive(Clone, Debug)]
pub(super) struct Map {
    /// The regions of block 0, or of every block in turn, in canonical order.
    origins: Box<[Origin]>,
    blocks: Blocks,
    interior: Interior,
    /// Whether a run may continue the run before it, so that a walk must read ahead to tell.
    runs_touch: bool,
}

/// How block `b` follows from block 0.
#[derive(Clone, Copy, Debug)]
enum Blocks {
    /// Each lies this many bytes after the one before, in the same storages.
    Stride(usize),
    /// Each has this many origins of its own.
    Table(usize),
}

impl Map {
    /// All blocks alike, `block_stride` bytes apart.
    pub(super) fn affine(
        mut origins: Box<[Origin]>,
        block_stride: usize,
        interior: Interior,
    ) -> Self {
        link_runs(&mut origins, &interior);
        let runs_touch = interior.runs_touch() || regions_touch(&origins, &interior);
        Self { origins, blocks: Blocks::Stride(block_stride), interior, runs_touch }
    }

    /// Each block with `regions` origins of its own; a region is `region_bytes` in one run.
    pub(super) fn table(mut origins: Box<[Origin]>, regions: usize, region_bytes: usize) -> Self {
        let interior = Interior::contiguous(region_bytes);
        origins.chunks_mut(regions).for_each(|row| link_runs(row, &interior));
        Self { origins, blocks: Blocks::Table(regions), interior, runs_touch: false }
    }

    /// The origins of `block` and what to add to each; the block exists.
    #[inline]
    pub(super) fn row(&self, block: usize) -> (&[Origin], usize) {
        match self.blocks {
            Blocks::Stride(stride) => (&self.origins, block * stride),
            Blocks::Table(regions) => (&self.origins[block * regions..][..regions], 0),
        }
    }

    pub(super) fn interior(&self) -> &Interior {
        &self.interior
    }

    /// Fails unless every byte of every block lies in its storage. `name` says what the origin of
    /// an index is, for the message.
    pub(super) fn check_bounds(
        &self,
        num_blocks: usize,
        storage_sizes: &[usize],
        name: impl Fn(usize) -> String,
    ) -> Result<(), LayoutError> {
        let reach = match self.blocks {
            Blocks::Stride(stride) => mul("block extent", num_blocks - 1, stride)?,
            Blocks::Table(_) => 0,
        };
        let reach = add("block extent", reach, self.interior.extent()?)?;
        for (index, origin) in self.origins.iter().enumerate() {
            let storage = origin.storage as usize;
            let size = storage_sizes.get(storage).copied().unwrap_or(0);
            let end = add("end of the last block", origin.offset, reach)?;
            if end > size {
                return Err(LayoutError::OutOfBounds { what: name(index), storage, end, size });
            }
        }
        Ok(())
    }

    pub(super) fn runs_touch(&self) -> bool {
        self.runs_touch
    }

    pub(super) fn origins(&self) -> &[Origin] {
        &self.origins
    }
}

/// Whether some strewn region starts where the one before it ends.
fn regions_touch(row: &[Origin], interior: &Interior) -> bool {
    // A region past the address space fails the bounds check; what is said of it is moot.
    let extent = interior.extent().unwrap_or(usize::MAX);
    !interior.is_contiguous()
        && row.windows(2).any(|pair| {
            pair[0].storage == pair[1].storage
                && pair[0].offset.checked_add(extent) == Some(pair[1].offset)
        })
}

/// Sets `run` of each origin of one block.
fn link_runs(row: &mut [Origin], interior: &Interior) {
    if !interior.is_contiguous() {
        return;
    }
    for index in (1..row.len()).rev() {
        let (this, next) = (row[index - 1], row[index]);
        if this.storage == next.storage
            && this.offset.checked_add(interior.run) == Some(next.offset)
        {
            row[index - 1].run = next.run + 1;
        }
    }
}
