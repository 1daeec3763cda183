//! The structures of `dlpack.h`, version 1.1, and the codes of our data types.

use std::ffi::{CStr, c_void};

use dynamo_llm::common::dtype::DType;

pub(super) const VERSION: Version = Version { major: 1, minor: 1 };

pub(super) const LEGACY: &CStr = c"dltensor";
pub(super) const VERSIONED: &CStr = c"dltensor_versioned";

/// The tensor may not be written.
pub(super) const FLAG_READ_ONLY: u64 = 1;
/// The tensor is a copy made for this export.
pub(super) const FLAG_IS_COPIED: u64 = 1 << 1;

/// Ordinary memory.
pub(super) const DEVICE_CPU: i32 = 1;
/// Ordinary memory that a GPU driver knows.
pub(super) const DEVICE_CUDA_HOST: i32 = 3;

pub(super) const CODE_INT: u8 = 0;
pub(super) const CODE_UINT: u8 = 1;
const CODE_FLOAT: u8 = 2;
const CODE_BFLOAT: u8 = 4;
const CODE_FLOAT8_E4M3FN: u8 = 10;
const CODE_FLOAT8_E5M2: u8 = 12;

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Version {
    pub(super) major: u32,
    pub(super) minor: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Device {
    pub(super) device_type: i32,
    pub(super) device_id: i32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct DataType {
    pub(super) code: u8,
    pub(super) bits: u8,
    pub(super) lanes: u16,
}

#[repr(C)]
pub(super) struct DlTensor {
    pub(super) data: *mut c_void,
    pub(super) device: Device,
    pub(super) ndim: i32,
    pub(super) dtype: DataType,
    pub(super) shape: *mut i64,
    pub(super) strides: *mut i64,
    pub(super) byte_offset: u64,
}

#[repr(C)]
pub(super) struct Managed {
    pub(super) tensor: DlTensor,
    pub(super) context: *mut c_void,
    pub(super) deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
pub(super) struct ManagedVersioned {
    pub(super) version: Version,
    pub(super) context: *mut c_void,
    pub(super) deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    pub(super) flags: u64,
    pub(super) tensor: DlTensor,
}

/// The code of an element type.
pub(super) fn data_type(dtype: DType) -> DataType {
    let code = match dtype {
        DType::BF16 => CODE_BFLOAT,
        DType::FP8_E4M3 => CODE_FLOAT8_E4M3FN,
        DType::FP8_E5M2 => CODE_FLOAT8_E5M2,
        DType::INT8 | DType::INT16 | DType::INT32 | DType::INT64 => CODE_INT,
        DType::UINT8 | DType::UINT16 | DType::UINT32 | DType::UINT64 => CODE_UINT,
        _ => CODE_FLOAT,
    };
    DataType { code, bits: 8 * dtype.size_bytes() as u8, lanes: 1 }
}
