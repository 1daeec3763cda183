//! Tensors of other libraries, kept.
//!
//! A tensor that was taken out of its capsule is given back by calling its deleter, which may drop
//! Python objects. Whoever is the last to need it may be a Rust thread, or hold a lock of ours; so
//! a [`Lent`] that is dropped goes on a list, and [`give_back`] calls the deleters, on a Python
//! thread, between our own affairs. The list takes no lock: a process may be forked at any time.
#![allow(unsafe_code)]

use std::{
    ptr::{self, NonNull},
    sync::atomic::{AtomicPtr, Ordering},
};

use dynamo_llm::common::dtype::DType;
use pyo3::{
    exceptions::PyTypeError,
    ffi,
    prelude::*,
    types::{PyCapsule, PyType},
};

use super::{
    abi::{
        CODE_INT, CODE_UINT, DEVICE_CPU, DEVICE_CUDA_HOST, DataType, DlTensor, FLAG_IS_COPIED,
        FLAG_READ_ONLY, LEGACY, Managed, ManagedVersioned, VERSIONED, data_type,
    },
    import::capsule_of,
};
use crate::{
    argument::wrong_type,
    error::{Failure, Kind},
};

/// A tensor that its producer must keep until this is dropped and [`give_back`] was called.
#[derive(Debug)]
pub(crate) struct Lent(Option<Box<Node>>);

/// What has to be called, and the next of the list.
#[derive(Debug)]
struct Node {
    managed: Structure,
    next: *mut Node,
}

#[derive(Clone, Copy, Debug)]
enum Structure {
    Legacy(NonNull<Managed>),
    Versioned(NonNull<ManagedVersioned>),
}

// SAFETY: the structure is only kept; it is read while it is taken and handed to its deleter, both
// with the interpreter attached.
unsafe impl Send for Lent {}
// SAFETY: as above; nothing can be done with a shared one.
unsafe impl Sync for Lent {}

/// Dropped and not given back yet.
static RETURNED: AtomicPtr<Node> = AtomicPtr::new(ptr::null_mut());

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(node) = self.0.take() else { return };
        let node = Box::into_raw(node);
        let mut head = RETURNED.load(Ordering::Relaxed);
        loop {
            // SAFETY: the node is not on the list yet, so it is ours alone.
            unsafe { (*node).next = head };
            match RETURNED.compare_exchange_weak(head, node, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => head = other,
            }
        }
    }
}

/// Gives back what was dropped since the last time. Python code may run here.
#[inline]
pub(crate) fn give_back(py: Python<'_>) {
    if !RETURNED.load(Ordering::Relaxed).is_null() {
        give_back_all(py);
    }
}

#[cold]
fn give_back_all(_attached: Python<'_>) {
    let mut node = RETURNED.swap(ptr::null_mut(), Ordering::Acquire);
    while !node.is_null() {
        // SAFETY: the whole list was taken off at once, so its nodes, each made by `Box`, are ours.
        let Node { managed, next } = *unsafe { Box::from_raw(node) };
        node = next;
        // SAFETY: the structure was taken out of its capsule, and this is its only end.
        unsafe {
            match managed {
                Structure::Legacy(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
                Structure::Versioned(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
            }
        }
    }
}

/// Where a lent tensor lies. Strides in elements, as its producer gave them.
pub(crate) struct Seen {
    pub(crate) data: *mut u8,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) strides: Vec<i64>,
}

impl Lent {
    /// Takes a writable tensor in ordinary memory, of elements of `dtype`: by that type, as integers
    /// of its width, or as raw bytes.
    ///
    /// # Errors
    /// Naming `argument`: for what is no tensor, lies elsewhere, may not be written, was copied, or
    /// has other elements.
    pub(crate) fn take(
        argument: &str,
        tensor: &Bound<'_, PyAny>,
        dtype: DType,
    ) -> PyResult<(Self, Seen)> {
        let refuse = |message: String| -> PyErr {
            Failure::new(Kind::Config, format!("{argument}: {message}")).into()
        };
        if tensor.is_instance_of::<PyType>() || !tensor.hasattr("__dlpack_device__")? {
            return Err(wrong_type(argument, tensor, "a tensor (numpy, torch) with __dlpack__"));
        }
        // Asked first: an export of GPU memory may wait for the GPU.
        let device: (i32, i32) = tensor.call_method0("__dlpack_device__")?.extract()?;
        if !matches!(device.0, DEVICE_CPU | DEVICE_CUDA_HOST) {
            return Err(refuse(format!(
                "on device {device:?}; this version borrows tensors in host memory"
            )));
        }
        let capsule = capsule_of(tensor).map_err(|error| refuse(error.to_string()))?;
        let capsule = capsule.cast::<PyCapsule>()?;
        let (lent, seen, flags) = if let Ok(managed) = capsule.pointer_checked(Some(VERSIONED)) {
            let managed = managed.cast::<ManagedVersioned>();
            // SAFETY: a capsule of this name holds this structure until it is consumed, whose
            // version stands first in every version.
            let major = unsafe { (&raw const (*managed.as_ptr()).version).read() }.major;
            if major != 1 {
                return Err(PyTypeError::new_err(format!(
                    "{argument}: DLPack {major} is not known; 1 is"
                )));
            }
            let lent = consume(capsule, c"used_dltensor_versioned", Structure::Versioned(managed))?;
            // SAFETY: version 1 has these fields, and `lent` keeps them.
            let managed = unsafe { managed.as_ref() };
            (lent, &managed.tensor, managed.flags)
        } else {
            let managed = capsule.pointer_checked(Some(LEGACY))?.cast::<Managed>();
            let lent = consume(capsule, c"used_dltensor", Structure::Legacy(managed))?;
            // SAFETY: a capsule of this name holds this structure, and `lent` keeps it.
            (lent, unsafe { &managed.as_ref().tensor }, 0)
        };
        if flags & FLAG_READ_ONLY != 0 || never_changes(tensor)? {
            return Err(refuse(
                "read-only; blocks are written into, give a writable tensor".into(),
            ));
        }
        if flags & FLAG_IS_COPIED != 0 {
            return Err(refuse(
                "its library made a copy; give the tensor that the engine uses".into(),
            ));
        }
        let DataType { code, bits, lanes } = seen.dtype;
        let wanted = data_type(dtype);
        let number = matches!(code, CODE_INT | CODE_UINT) && lanes == 1;
        let dtype = if seen.dtype == wanted || number && bits == wanted.bits {
            dtype
        } else if number && bits == 8 {
            DType::UINT8
        } else {
            return Err(refuse(format!(
                "elements of type code {code} with {bits} bits and {lanes} lanes (DLPack's \
                 numbers); give {dtype}, integers of its width, or bytes"
            )));
        };
        let (shape, strides) = dimensions(seen);
        let shape: Option<Vec<usize>> = shape.iter().map(|&n| n.try_into().ok()).collect();
        let some = |shape: &Vec<usize>| !shape.contains(&0) && !seen.data.is_null();
        let Some(shape) = shape.filter(some) else {
            return Err(refuse("without elements; give one with a block at least".into()));
        };
        let data = seen.data.cast::<u8>().wrapping_add(seen.byte_offset as usize);
        Ok((lent, Seen { data, dtype, shape, strides }))
    }
}

/// Whether it is of a library whose arrays never change, but which does not say so in its capsules.
fn never_changes(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    let module = tensor.get_type().module()?;
    Ok(matches!(module.to_string_lossy().split('.').next(), Some("jax" | "jaxlib")))
}

/// Marks the capsule as used, so that its own destructor leaves the tensor alone.
fn consume(
    capsule: &Bound<'_, PyCapsule>,
    used: &'static std::ffi::CStr,
    managed: Structure,
) -> PyResult<Lent> {
    // Before the capsule is renamed: nothing may fail between that and its owner.
    let node = Box::new(Node { managed, next: ptr::null_mut() });
    // SAFETY: it is a capsule, and the name is static.
    if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
        return Err(PyErr::fetch(capsule.py()));
    }
    Ok(Lent(Some(node)))
}

/// Shape and strides; without strides the last dimension is the fastest and there are no gaps.
fn dimensions(tensor: &DlTensor) -> (Vec<i64>, Vec<i64>) {
    let dims = usize::try_from(tensor.ndim).unwrap_or(0);
    if dims == 0 {
        return (Vec::new(), Vec::new());
    }
    // SAFETY: by DLPack's rules a tensor has as many sizes as dimensions.
    let shape = unsafe { std::slice::from_raw_parts(tensor.shape, dims) }.to_vec();
    let strides = if tensor.strides.is_null() {
        let mut strides = vec![1_i64; dims];
        for dim in (1..dims).rev() {
            strides[dim - 1] = strides[dim].saturating_mul(shape[dim]);
        }
        strides
    } else {
        // SAFETY: by DLPack's rules as many strides, unless the pointer is null.
        unsafe { std::slice::from_raw_parts(tensor.strides, dims) }.to_vec()
    };
    (shape, strides)
}
