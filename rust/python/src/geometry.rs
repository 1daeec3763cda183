//! Blocks as one strided tensor, where one describes them.
//!
//! The layout says where each (block, layer, outer) region lies. When all of them are single runs at
//! even distances within one storage, a tensor with strides is the same bytes; otherwise there is
//! none, and the parts (a layer, a block) may still have theirs.

use std::{ptr::NonNull, sync::Arc};

use dynamo_llm::{
    block_manager::{layout::Span, offload::TierBlocks, storage::StorageAccess},
    common::dtype::DType,
};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::error::chain;

/// Dimensions of the largest tensor: a list of blocks.
pub(crate) const MAX_DIMS: usize = 5;

/// Which part of a tier an object shows.
#[derive(Clone)]
pub(crate) struct Extent {
    pub(crate) tier: Arc<TierBlocks>,
    /// One layer instead of all.
    pub(crate) layer: Option<usize>,
    /// Whether the blocks are a dimension, or one block is all.
    pub(crate) list: bool,
    /// As bytes instead of elements.
    pub(crate) bytes: bool,
}

/// A tensor: where it begins, its shape and strides in elements.
pub(crate) struct Tensor {
    /// Null for a tensor without elements.
    pub(crate) data: *mut u8,
    pub(crate) dtype: DType,
    pub(crate) dims: usize,
    pub(crate) shape: [i64; MAX_DIMS],
    pub(crate) strides: [i64; MAX_DIMS],
}

impl Extent {
    /// The element type that is shown.
    pub(crate) fn dtype(&self) -> DType {
        if self.bytes { DType::UINT8 } else { self.tier.layout().dtype() }
    }

    /// The shape for so many blocks.
    pub(crate) fn shape(&self, blocks: usize) -> Vec<usize> {
        let layout = self.tier.layout();
        let bytes = if self.bytes { layout.dtype().size_bytes() } else { 1 };
        let mut shape = Vec::with_capacity(MAX_DIMS);
        if self.list {
            shape.push(blocks);
        }
        if self.layer.is_none() {
            shape.push(layout.num_layers());
        }
        shape.extend([layout.outer_dim(), layout.page_size(), layout.inner_dim() * bytes]);
        shape
    }

    fn layers(&self) -> std::ops::Range<usize> {
        match self.layer {
            Some(layer) => layer..layer + 1,
            None => 0..self.tier.layout().num_layers(),
        }
    }

    /// Fails where a region is not its tokens in turn: nothing then has the shape that is shown.
    fn check_packing(&self) -> PyResult<()> {
        let layout = self.tier.layout();
        match layout.packing() {
            Some(packing) if !layout.is_token_major() => Err(PyBufferError::new_err(format!(
                "the device tier lies in tensors packed {packing}, which no tensor of (tokens, \
                 elements) shows; look at block_id in the tensors that were lent"
            ))),
            _ => Ok(()),
        }
    }

    /// The bytes of each block in turn, in canonical order.
    pub(crate) fn spans(&self, ids: &[u32]) -> PyResult<Vec<Span>> {
        self.check_packing()?;
        let layout = self.tier.layout();
        let mut spans = Vec::new();
        for &id in ids {
            spans.extend(layout.spans(id as usize, self.layers()).map_err(refuse)?);
        }
        Ok(spans)
    }

    /// The address of a run.
    pub(crate) fn address(&self, span: Span) -> PyResult<*mut u8> {
        let storage = &self.tier.memory().map_err(refuse)?.storages()[span.storage];
        let start = storage.ptr_at(span.offset, span.len);
        start.map(NonNull::as_ptr).map_err(refuse)
    }

    /// A tensor of this shape without gaps that begins at `data`.
    pub(crate) fn packed(&self, blocks: usize, data: *mut u8) -> Tensor {
        let sizes = self.shape(blocks);
        let mut shape = [0; MAX_DIMS];
        for (dim, &size) in shape.iter_mut().zip(&sizes) {
            *dim = size as i64;
        }
        let dims = sizes.len();
        let strides = packed_strides(&shape[..dims]);
        Tensor { data, dtype: self.dtype(), dims, shape, strides }
    }

    /// The tensor that shows the slots `ids` in place.
    pub(crate) fn in_place(&self, ids: &[u32]) -> PyResult<Tensor> {
        self.check_packing()?;
        self.tier.memory().and_then(|memory| memory.check_accessible()).map_err(refuse)?;
        let Some(&first) = ids.first() else {
            return Ok(self.packed(0, std::ptr::null_mut()));
        };
        let layout = self.tier.layout();
        if let (&[id], None) = (ids, self.layer)
            && let Some(span) = layout.contiguous_block(id as usize)
        {
            return Ok(self.packed(1, self.address(span)?));
        }
        let origin = self.region(first, self.layers().start, 0)?;
        let (block, layer, outer) = self.distances(ids, origin)?;
        let mut tensor = self.packed(ids.len(), self.address(origin)?);
        let item = self.dtype().size_bytes();
        let steps = [(self.list, block), (self.layer.is_none(), layer), (true, outer)];
        let shown = steps.into_iter().filter(|(shown, _)| *shown);
        for (axis, (_, step)) in shown.enumerate() {
            if tensor.shape[axis] > 1 {
                if step % item != 0 {
                    return Err(spread(&format!("{step} bytes apart, no multiple of {item}")));
                }
                tensor.strides[axis] = (step / item) as i64;
            }
        }
        // An axis of one has no distance of its own: as if packed, so that nobody sees a gap.
        for axis in (0..tensor.dims - 1).rev() {
            if tensor.shape[axis] == 1 {
                tensor.strides[axis] = tensor.strides[axis + 1] * tensor.shape[axis + 1];
            }
        }
        Ok(tensor)
    }

    /// The one run of a region.
    fn region(&self, id: u32, layer: usize, outer: usize) -> PyResult<Span> {
        let layout = self.tier.layout();
        let mut spans = layout.region_spans(id as usize, layer, outer).map_err(refuse)?;
        match (spans.next(), spans.next()) {
            (Some(span), None) => Ok(span),
            _ => Err(spread("a region is several runs")),
        }
    }

    /// Bytes from block to block, layer to layer, outer to outer, the same everywhere.
    fn distances(&self, ids: &[u32], origin: Span) -> PyResult<(usize, usize, usize)> {
        let (layers, outer_dim) = (self.layers(), self.tier.layout().outer_dim());
        let step = |to: Option<Span>| match to {
            None => Ok(0),
            Some(to) if to.storage == origin.storage && to.offset >= origin.offset => {
                Ok(to.offset - origin.offset)
            }
            Some(to) if to.storage == origin.storage => {
                Err(spread("blocks are not in ascending order"))
            }
            Some(_) => Err(spread("layers lie in storages of their own")),
        };
        let second = ids.get(1).map(|&id| self.region(id, layers.start, 0)).transpose()?;
        let block = step(second)?;
        let next = (layers.len() > 1).then(|| self.region(ids[0], layers.start + 1, 0));
        let layer = step(next.transpose()?)?;
        let next = (outer_dim > 1).then(|| self.region(ids[0], layers.start, 1));
        let outer = step(next.transpose()?)?;
        for (nth, &id) in ids.iter().enumerate() {
            for at in layers.clone() {
                for part in 0..outer_dim {
                    let span = self.region(id, at, part)?;
                    let expected =
                        origin.offset + nth * block + (at - layers.start) * layer + part * outer;
                    if span.storage != origin.storage || span.offset != expected {
                        return Err(spread("the parts are not evenly spaced"));
                    }
                }
            }
        }
        Ok((block, layer, outer))
    }
}

/// Strides without gaps.
fn packed_strides(shape: &[i64]) -> [i64; MAX_DIMS] {
    let mut strides = [0; MAX_DIMS];
    let mut step = 1;
    for (stride, &size) in strides[..shape.len()].iter_mut().zip(shape).rev() {
        *stride = step;
        step *= size.max(1);
    }
    strides
}

fn spread(reason: &str) -> PyErr {
    PyBufferError::new_err(format!(
        "no one strided tensor describes this: {reason}; take the blocks or their layers one by \
         one, or pass copy=True"
    ))
}

fn refuse(error: impl std::error::Error) -> PyErr {
    PyBufferError::new_err(chain(&error))
}
