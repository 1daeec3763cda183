//! From tensors to memory: one storage for each run of bytes that they cover.
#![allow(unsafe_code)]

use std::sync::Arc;

use dynamo_llm::{
    block_manager::{layout::ExternalTensor, storage::Storage},
    common::dtype::DType,
};
use pyo3::PyResult;

use super::{refuse, storage::BorrowedStorage};
use crate::dlpack::{Lent, Seen};

/// Storages, their sizes, and each tensor in the terms of these.
type Joined = (Vec<Arc<dyn Storage>>, Vec<usize>, Vec<Vec<ExternalTensor>>);

/// Bytes between two addresses, and whose.
struct Run {
    start: *mut u8,
    end: usize,
    lent: Vec<Lent>,
}

/// Tensors whose bytes lie between each other's are one storage, so that the layout sees whether they
/// share any.
pub(super) fn join(parts: Vec<Vec<(Lent, Seen)>>, dtype: DType) -> PyResult<Joined> {
    let (mut seen, mut runs) = (Vec::with_capacity(parts.len()), Vec::new());
    for part in parts {
        let mut tensors = Vec::with_capacity(part.len());
        for (lent, tensor) in part {
            let bytes = extent(&tensor, dtype)?;
            let Some(end) = tensor.data.addr().checked_add(bytes) else {
                return Err(refuse("device_tensors: past the end of the address space".into()));
            };
            runs.push(Run { start: tensor.data, end, lent: vec![lent] });
            tensors.push(tensor);
        }
        seen.push(tensors);
    }
    runs.sort_by_key(|run| run.start.addr());
    let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
    for mut run in runs {
        match joined.last_mut() {
            Some(last) if run.start.addr() < last.end => {
                last.end = last.end.max(run.end);
                last.lent.append(&mut run.lent);
            }
            _ => joined.push(run),
        }
    }
    let mut described = Vec::with_capacity(seen.len());
    for tensors in seen {
        let tensors = tensors.into_iter().map(|tensor| {
            let address = tensor.data.addr();
            // The runs are sorted and cover every tensor.
            let at = joined.partition_point(|run| run.start.addr() <= address).saturating_sub(1);
            let offset = address - joined[at].start.addr();
            ExternalTensor::new(at, offset, tensor.shape, tensor.strides)
        });
        described.push(tensors.collect());
    }
    let sizes = joined.iter().map(|run| run.end - run.start.addr()).collect();
    let storages = joined.into_iter().map(|run| -> Arc<dyn Storage> {
        let size = run.end - run.start.addr();
        // SAFETY: from the first to the last element of tensors that overlap, each of which lies in
        // memory that it keeps and, not being read-only, may be written.
        Arc::new(unsafe { BorrowedStorage::new(run.start, size, run.lent) })
    });
    Ok((storages.collect(), sizes, described))
}

/// Bytes from the first element of a tensor to the end of its last.
fn extent(tensor: &Seen, dtype: DType) -> PyResult<usize> {
    let mut last: usize = 0;
    for (dimension, (&count, &stride)) in tensor.shape.iter().zip(&tensor.strides).enumerate() {
        if count <= 1 {
            continue;
        }
        let step = usize::try_from(stride).ok().filter(|&step| step > 0);
        let Some(step) = step else {
            return Err(refuse(format!(
                "device_tensors: stride {stride} in dimension {dimension}; give a view that goes \
                 forward and repeats nothing"
            )));
        };
        let end = (count - 1).checked_mul(step).and_then(|far| last.checked_add(far));
        last = end.ok_or_else(|| too_large(tensor))?;
    }
    let bytes = last.checked_add(1).and_then(|elements| elements.checked_mul(dtype.size_bytes()));
    bytes.filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or_else(|| too_large(tensor))
}

fn too_large(tensor: &Seen) -> pyo3::PyErr {
    refuse(format!("device_tensors: shape {:?} passes the address space", tensor.shape))
}
