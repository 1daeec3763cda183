//! Runs of bytes, and the iterator that walks a block.

use std::iter::FusedIterator;
use std::ops::Range;

use super::map::{Interior, MAX_DIMS, Map, Origin};

/// A run of bytes in one storage of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Index into [`BlockLayout::storage_sizes`](super::BlockLayout::storage_sizes).
    pub storage: usize,
    /// First byte, from the start of the storage.
    pub offset: usize,
    /// Bytes, at least 1 in what a layout yields.
    pub len: usize,
}

impl Span {
    /// First byte after the run.
    pub const fn end(&self) -> usize {
        self.offset + self.len
    }

    /// Whether `next` starts where this run ends.
    const fn touches(&self, next: &Span) -> bool {
        self.storage == next.storage && self.end() == next.offset
    }
}

/// The byte runs of some regions of one block, in canonical order, neighbours coalesced.
///
/// Made by [`BlockLayout::spans`](super::BlockLayout::spans) and
/// [`BlockLayout::region_spans`](super::BlockLayout::region_spans). Allocates nothing.
#[derive(Clone, Debug)]
pub struct Spans<'a> {
    /// Regions not finished yet.
    origins: &'a [Origin],
    interior: &'a Interior,
    /// Whether runs must be read ahead to find their ends.
    runs_touch: bool,
    region_bytes: usize,
    /// Added to every origin: where this block is relative to block 0.
    base: usize,
    /// Position inside the first region of `origins`, per dimension of `interior`.
    index: [usize; MAX_DIMS],
    /// The same position in bytes.
    inner: usize,
    /// A run that was read ahead and does not continue the one before.
    pending: Option<Span>,
}

impl<'a> Spans<'a> {
    /// Walks `regions` of `block`; both exist.
    #[inline]
    pub(super) fn new(
        map: &'a Map,
        block: usize,
        regions: Range<usize>,
        region_bytes: usize,
    ) -> Self {
        let (origins, base) = map.row(block);
        Self {
            origins: &origins[regions],
            interior: map.interior(),
            runs_touch: map.runs_touch(),
            region_bytes,
            base,
            index: [0; MAX_DIMS],
            inner: 0,
            pending: None,
        }
    }

    /// The next run as the map has it.
    #[inline]
    fn piece(&mut self) -> Option<Span> {
        let origin = *self.origins.first()?;
        let offset = self.base + origin.offset + self.inner;
        let (done, len) = if self.interior.is_contiguous() {
            // The origin knows how many regions follow it without a gap.
            let regions = (origin.run as usize).min(self.origins.len());
            (regions, regions * self.region_bytes)
        } else {
            (usize::from(self.advance()), self.interior.run())
        };
        self.origins = &self.origins[done..];
        Some(Span { storage: origin.storage as usize, offset, len })
    }

    /// Steps to the next run of the region, like an odometer; true when the region is through.
    #[inline]
    fn advance(&mut self) -> bool {
        for (index, dim) in self.index.iter_mut().zip(self.interior.dims()) {
            *index += 1;
            if *index < dim.count {
                self.inner += dim.stride;
                return false;
            }
            self.inner -= dim.stride * (dim.count - 1);
            *index = 0;
        }
        true
    }
}

impl Iterator for Spans<'_> {
    type Item = Span;

    #[inline]
    fn next(&mut self) -> Option<Span> {
        if !self.runs_touch {
            return self.piece();
        }
        let mut span = match self.pending.take() {
            Some(span) => span,
            None => self.piece()?,
        };
        while let Some(next) = self.piece() {
            if !span.touches(&next) {
                self.pending = Some(next);
                break;
            }
            span.len += next.len;
        }
        Some(span)
    }
}

impl FusedIterator for Spans<'_> {}
