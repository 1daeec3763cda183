//! From blocks to capsules.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_void},
    ptr,
};

use pyo3::{exceptions::PyBufferError, ffi, prelude::*};

use super::{
    Terms,
    abi::{
        DEVICE_CPU, Device, DlTensor, FLAG_IS_COPIED, FLAG_READ_ONLY, LEGACY, Managed,
        ManagedVersioned, VERSION, VERSIONED, data_type,
    },
};
use crate::{
    batch::{Batch, Owner},
    fork::Guarded,
    geometry::{Extent, MAX_DIMS, Tensor},
    view::View,
};

/// Copies of more bytes than this let other Python threads run.
const BRIEF_BYTES: usize = 1 << 20;

/// Device type and number as `DLPack` counts them. Pinned memory counts as ordinary memory, too:
/// that is what consumers can take.
pub(crate) fn device() -> (i32, i32) {
    (DEVICE_CPU, 0)
}

/// What an export keeps alive.
#[expect(dead_code, reason = "kept for their drop")]
enum Kept {
    /// The slots, and the memory that they lie in.
    Blocks(Owner, Extent),
    /// A copy.
    Copy(Vec<Line>),
}

/// Memory of a copy: aligned as consumers like it best.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "used by address")] [u8; 64]);

/// One export: the structure that the consumer sees, and behind it what it points to. It lives
/// until the deleter is called.
#[repr(C)]
struct Export<M> {
    /// First, so that the consumer's pointer is a pointer to the whole.
    managed: M,
    shape: [i64; MAX_DIMS],
    strides: [i64; MAX_DIMS],
    kept: Guarded<Kept>,
}

/// One of the two structures.
trait Form: Sized {
    const NAME: &'static CStr;
    fn new(flags: u64) -> Self;
    fn tensor(&mut self) -> &mut DlTensor;
}

impl Form for Managed {
    const NAME: &'static CStr = LEGACY;

    fn new(_flags: u64) -> Self {
        let deleter = Some(delete::<Self> as unsafe extern "C" fn(*mut Self));
        Self { tensor: no_tensor(), context: ptr::null_mut(), deleter }
    }

    fn tensor(&mut self) -> &mut DlTensor {
        &mut self.tensor
    }
}

impl Form for ManagedVersioned {
    const NAME: &'static CStr = VERSIONED;

    fn new(flags: u64) -> Self {
        let deleter = Some(delete::<Self> as unsafe extern "C" fn(*mut Self));
        let context = ptr::null_mut();
        Self { version: VERSION, context, deleter, flags, tensor: no_tensor() }
    }

    fn tensor(&mut self) -> &mut DlTensor {
        &mut self.tensor
    }
}

fn no_tensor() -> DlTensor {
    DlTensor {
        data: ptr::null_mut(),
        device: Device { device_type: DEVICE_CPU, device_id: 0 },
        ndim: 0,
        dtype: data_type(dynamo_llm::common::dtype::DType::UINT8),
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    }
}

/// Exports the blocks of `view` as a capsule.
///
/// # Errors
/// `BufferError` where no one tensor describes them or the consumer's terms cannot be met;
/// `BlockManagerError` for blocks that are no longer valid.
pub(crate) fn export<'py>(
    py: Python<'py>,
    batch: &Batch,
    view: View,
    extent: Extent,
    terms: &Terms,
) -> PyResult<Bound<'py, PyAny>> {
    let (owner, ids) = batch.owner(view)?;
    let (tensor, kept, flags) = if terms.copy {
        let (tensor, bytes) = copy(py, &extent, &ids, &owner)?;
        (tensor, Kept::Copy(bytes), FLAG_IS_COPIED)
    } else {
        let read_only = batch.is_registered();
        if read_only && !terms.versioned {
            return Err(PyBufferError::new_err(
                "a registered block is read-only, which a capsule without a version cannot say: \
                 use a consumer that asks for one (np.from_dlpack), or pass copy=True",
            ));
        }
        let flags = if read_only { FLAG_READ_ONLY } else { 0 };
        (extent.in_place(&ids)?, Kept::Blocks(owner, extent), flags)
    };
    if terms.versioned {
        capsule::<ManagedVersioned>(py, &tensor, kept, flags)
    } else {
        capsule::<Managed>(py, &tensor, kept, flags)
    }
}

/// The blocks' bytes in canonical order, in memory of their own.
fn copy(
    py: Python<'_>,
    extent: &Extent,
    ids: &[u32],
    owner: &Owner,
) -> PyResult<(Tensor, Vec<Line>)> {
    let spans = extent.spans(ids)?;
    let mut from = Vec::with_capacity(spans.len());
    for span in spans {
        from.push((extent.address(span)? as usize, span.len));
    }
    let total: usize = from.iter().map(|(_, len)| len).sum();
    let mut bytes = vec![Line([0; 64]); total.div_ceil(size_of::<Line>())];
    let fill = |bytes: &mut Vec<Line>| {
        let mut to = bytes.as_mut_ptr().cast::<u8>();
        for (from, len) in from {
            // SAFETY: `from` is `len` mapped bytes of slots that `owner` keeps, `to` has that much
            // room left of `total`, and the two are different allocations.
            unsafe {
                ptr::copy_nonoverlapping(from as *const u8, to, len);
                to = to.add(len);
            }
        }
    };
    if total > BRIEF_BYTES {
        py.detach(|| fill(&mut bytes));
    } else {
        fill(&mut bytes);
    }
    // Until here nobody else could have the slots.
    let _ = owner;
    let data = if total == 0 { ptr::null_mut() } else { bytes.as_mut_ptr().cast::<u8>() };
    Ok((extent.packed(ids.len(), data), bytes))
}

fn capsule<'py, M: Form>(
    py: Python<'py>,
    tensor: &Tensor,
    kept: Kept,
    flags: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let export = Box::into_raw(Box::new(Export {
        managed: M::new(flags),
        shape: tensor.shape,
        strides: tensor.strides,
        kept: Guarded::new(kept),
    }));
    // SAFETY: `export` was just made and is nobody else's yet; the pointers into it stay good
    // because the box is not moved before the deleter takes it apart.
    unsafe {
        let (shape, strides) = (&raw mut (*export).shape, &raw mut (*export).strides);
        let seen = (*export).managed.tensor();
        seen.data = tensor.data.cast::<c_void>();
        seen.ndim = tensor.dims as i32;
        seen.dtype = data_type(tensor.dtype);
        seen.shape = shape.cast::<i64>();
        seen.strides = strides.cast::<i64>();
    }
    // SAFETY: the name is static, the pointer is not null, the destructor knows what it is.
    let capsule =
        unsafe { ffi::PyCapsule_New(export.cast(), M::NAME.as_ptr(), Some(unconsumed::<M>)) };
    // SAFETY: a new reference, or null with an exception set.
    match unsafe { Bound::from_owned_ptr_or_err(py, capsule) } {
        Ok(capsule) => Ok(capsule),
        Err(error) => {
            // SAFETY: no capsule was made, so the export is still ours alone.
            unsafe { delete::<M>(export.cast()) };
            Err(error)
        }
    }
}

/// The deleter that consumers call, on any thread: it touches no Python.
///
/// # Safety
/// `managed` is the structure of an [`Export`] that was not deleted before.
unsafe extern "C" fn delete<M>(managed: *mut M) {
    if managed.is_null() {
        return;
    }
    // SAFETY: the structure is the first field of a boxed `Export<M>`, and the caller gives it up.
    drop(unsafe { Box::from_raw(managed.cast::<Export<M>>()) });
}

/// The destructor of a capsule: a consumer that took the tensor has renamed it.
///
/// # Safety
/// Called by Python with a capsule made by [`capsule`] for the same `M`.
unsafe extern "C" fn unconsumed<M: Form>(capsule: *mut ffi::PyObject) {
    // SAFETY: `capsule` is a capsule; the check sets no exception, and a pointer is taken only
    // after it said yes.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) == 1 {
            delete::<M>(ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()).cast());
        }
    }
}
