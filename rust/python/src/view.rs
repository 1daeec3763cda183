//! Which positions of a batch a list shows.

use std::ops::Range;

use pyo3::types::slice::PySliceIndices;

/// `len` positions from `start` on, `step` apart. All of them exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    start: usize,
    step: isize,
    len: usize,
}

impl View {
    pub(crate) fn whole(len: usize) -> Self {
        Self { start: 0, step: 1, len }
    }

    pub(crate) fn one(position: usize) -> Self {
        Self { start: position, step: 1, len: 1 }
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// The position of the `nth` item.
    pub(crate) fn at(self, nth: usize) -> usize {
        self.start.wrapping_add_signed(nth as isize * self.step)
    }

    /// All positions, in order.
    pub(crate) fn positions(self) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator {
        (0..self.len).map(move |nth| self.at(nth))
    }

    /// Whether it shows a batch of `len` as it is.
    pub(crate) fn is_whole(self, len: usize) -> bool {
        self == Self::whole(len)
    }

    /// The positions as a range, if they are neighbours in order.
    pub(crate) fn range(self) -> Option<Range<usize>> {
        (self.step == 1).then(|| self.start..self.start + self.len)
    }

    /// What a slice of this view shows.
    pub(crate) fn slice(self, part: &PySliceIndices) -> Self {
        let len = part.slicelength;
        // A step that is never taken may be any number; as 1 it stays a range.
        let step = if len < 2 { 1 } else { self.step * part.step };
        let start = if len == 0 { 0 } else { self.at(part.start as usize) };
        Self { start, step, len }
    }
}
