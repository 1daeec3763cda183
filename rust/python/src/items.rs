//! Indexing and iterating over our sequences.
//!
//! The items are made when they are asked for. An iterator may be shared by threads: each item
//! goes to one of them.

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::prelude::*;

use crate::{
    argument::wrong_type,
    block::Block,
    block_list::BlockList,
    hashes::{Hashes, SequenceHash, out_of_range},
    layer::Layer,
};

/// The position that an index means, negative ones counted from the end.
pub(crate) fn index(what: &str, index: &Bound<'_, PyAny>, len: usize) -> PyResult<usize> {
    let Some(number) = crate::argument::integer::<isize>(what, index)
        .map_err(|_| wrong_type(&format!("{what} index"), index, "a whole number or a slice"))?
    else {
        return Err(out_of_range(what, index, len));
    };
    let position = if number < 0 { number.checked_add_unsigned(len) } else { Some(number) };
    position
        .and_then(|position| usize::try_from(position).ok())
        .filter(|&position| position < len)
        .ok_or_else(|| out_of_range(what, index, len))
}

enum Source {
    Hashes(Hashes),
    Blocks(BlockList),
    Layers(Block),
}

/// An iterator over a sequence of ours.
#[pyclass(frozen, module = "dynamo_llm")]
pub(crate) struct Items {
    source: Source,
    len: usize,
    next: AtomicUsize,
}

impl Items {
    fn new(source: Source, len: usize) -> Self {
        Self { source, len, next: AtomicUsize::new(0) }
    }

    pub(crate) fn hashes(hashes: Hashes) -> Self {
        let len = hashes.as_slice().len();
        Self::new(Source::Hashes(hashes), len)
    }

    pub(crate) fn blocks(blocks: BlockList) -> Self {
        let len = blocks.count();
        Self::new(Source::Blocks(blocks), len)
    }

    pub(crate) fn layers(block: Block, layers: usize) -> Self {
        Self::new(Source::Layers(block), layers)
    }
}

#[pymethods]
impl Items {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        // Past the end it stays there: it counts no further than it is asked.
        if self.next.load(Ordering::Relaxed) >= self.len {
            return Ok(None);
        }
        let position = self.next.fetch_add(1, Ordering::Relaxed);
        if position >= self.len {
            return Ok(None);
        }
        Ok(Some(match &self.source {
            Source::Hashes(hashes) => {
                Bound::new(py, SequenceHash(hashes.as_slice()[position]))?.into_any()
            }
            Source::Blocks(blocks) => Bound::new(py, blocks.block(position)?)?.into_any(),
            Source::Layers(block) => Bound::new(py, Layer::new(block, position)?)?.into_any(),
        }))
    }
}
