//! Token ids out of another library's tensor.
#![allow(unsafe_code)]

use std::fmt::Display;

use pyo3::{
    exceptions::PyTypeError,
    prelude::*,
    types::{PyCapsule, PyDict},
};

use super::abi::{
    CODE_INT, CODE_UINT, DEVICE_CPU, DataType, DlTensor, LEGACY, Managed, ManagedVersioned,
    VERSIONED,
};
use crate::tokens::narrow;

/// Copies the token ids of a tensor of one dimension in ordinary memory.
pub(crate) fn tokens(tensor: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    // Asked first: an export of GPU memory may wait for the GPU.
    let device: (i32, i32) = tensor.call_method0("__dlpack_device__")?.extract()?;
    if device.0 != DEVICE_CPU {
        return Err(PyTypeError::new_err(format!(
            "tokens: a tensor on device {device:?}; bring it to the CPU first, such as tokens.cpu()"
        )));
    }
    let capsule = capsule_of(tensor)?;
    let capsule = capsule.cast::<PyCapsule>()?;
    if let Ok(managed) = capsule.pointer_checked(Some(VERSIONED)) {
        let managed = managed.cast::<ManagedVersioned>();
        // SAFETY: a capsule of this name holds this structure, alive until its deleter is called.
        let (major, result) = unsafe {
            let managed = managed.as_ref();
            // Only a structure of a major version that is known has the fields that are read.
            let known = managed.version.major == 1;
            (managed.version.major, known.then(|| read(&managed.tensor)))
        };
        // The capsule is not renamed: its own destructor gives the tensor back.
        return result.unwrap_or_else(|| {
            Err(PyTypeError::new_err(format!("tokens: DLPack {major} is not known; 1 is")))
        });
    }
    let managed = capsule.pointer_checked(Some(LEGACY))?.cast::<Managed>();
    // SAFETY: as above.
    read(unsafe { &managed.as_ref().tensor })
}

/// A capsule, of the newest form that the producer knows.
pub(super) fn capsule_of<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = tensor.py();
    let terms = PyDict::new(py);
    terms.set_item("max_version", (1, 1))?;
    match tensor.call_method("__dlpack__", (), Some(&terms)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => tensor.call_method0("__dlpack__"),
        other => other,
    }
}

fn read(tensor: &DlTensor) -> PyResult<Vec<u32>> {
    if tensor.ndim != 1 {
        return Err(PyTypeError::new_err(format!(
            "tokens: a tensor of {} dimensions; give one, such as tokens.ravel()",
            tensor.ndim
        )));
    }
    // SAFETY: by DLPack's rules a tensor of one dimension has one size, and a stride unless the
    // pointer is null, which means packed.
    let (len, stride) = unsafe {
        let stride = tensor.strides.as_ref().copied().unwrap_or(1);
        (*tensor.shape, stride)
    };
    let len = usize::try_from(len).unwrap_or(0);
    let start = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
    let DataType { code, bits, lanes } = tensor.dtype;
    match (code, bits, lanes) {
        (CODE_UINT, 8, 1) => numbers::<u8>(start, len, stride),
        (CODE_UINT, 16, 1) => numbers::<u16>(start, len, stride),
        (CODE_UINT, 32, 1) => numbers::<u32>(start, len, stride),
        (CODE_UINT, 64, 1) => numbers::<u64>(start, len, stride),
        (CODE_INT, 8, 1) => numbers::<i8>(start, len, stride),
        (CODE_INT, 16, 1) => numbers::<i16>(start, len, stride),
        (CODE_INT, 32, 1) => numbers::<i32>(start, len, stride),
        (CODE_INT, 64, 1) => numbers::<i64>(start, len, stride),
        _ => Err(PyTypeError::new_err(format!(
            "tokens: a tensor of element type code {code} with {bits} bits and {lanes} lanes \
             (DLPack's numbers); give integers"
        ))),
    }
}

fn numbers<T: Copy + Display + TryInto<u32>>(
    start: *const u8,
    len: usize,
    stride: i64,
) -> PyResult<Vec<u32>> {
    let start = start.cast::<T>();
    let elements = (0..len).map(|nth| {
        // SAFETY: the producer vouches that element `nth` lies so many strides after the start; it
        // need not be aligned.
        unsafe { start.wrapping_offset(nth as isize * stride as isize).read_unaligned() }
    });
    Ok(narrow(elements)?)
}
