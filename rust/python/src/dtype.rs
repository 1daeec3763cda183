//! `DType`: the type of one cache element.

use dynamo_llm::common::dtype::DType as Core;
use pyo3::{prelude::*, types::PyString};

use crate::{argument::wrong_type, error::Failure};

/// The type of one cache element: `DType.BF16`, or by name `DType("bf16")`.
#[pyclass(frozen, eq, hash, module = "dynamo_llm")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct DType(pub(crate) Core);

#[pymethods]
#[allow(clippy::trivially_copy_pass_by_ref, reason = "methods of Python classes take references")]
impl DType {
    #[new]
    fn new(name: &str) -> Result<Self, Failure> {
        Ok(Self(name.parse::<Core>()?))
    }

    /// The lower-case name, as in configuration files: `fp16`, `fp8_e4m3`.
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Bytes of one element.
    #[getter]
    fn size_bytes(&self) -> usize {
        self.0.size_bytes()
    }

    fn __repr__(&self) -> String {
        format!("DType.{}", self.0.name().to_ascii_uppercase())
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> (Bound<'py, pyo3::types::PyType>, (&'static str,)) {
        (slf.get_type(), (slf.get().0.name(),))
    }

    #[classattr]
    const FP16: Self = Self(Core::FP16);
    #[classattr]
    const BF16: Self = Self(Core::BF16);
    #[classattr]
    const FP32: Self = Self(Core::FP32);
    #[classattr]
    const FP64: Self = Self(Core::FP64);
    #[classattr]
    const FP8_E4M3: Self = Self(Core::FP8_E4M3);
    #[classattr]
    const FP8_E5M2: Self = Self(Core::FP8_E5M2);
    #[classattr]
    const INT8: Self = Self(Core::INT8);
    #[classattr]
    const INT16: Self = Self(Core::INT16);
    #[classattr]
    const INT32: Self = Self(Core::INT32);
    #[classattr]
    const INT64: Self = Self(Core::INT64);
    #[classattr]
    const UINT8: Self = Self(Core::UINT8);
    #[classattr]
    const UINT16: Self = Self(Core::UINT16);
    #[classattr]
    const UINT32: Self = Self(Core::UINT32);
    #[classattr]
    const UINT64: Self = Self(Core::UINT64);
}

/// A data type as an argument: a `DType` or its name.
#[derive(Clone, Copy)]
pub(crate) struct DTypeArgument(pub(crate) Core);

impl<'py> FromPyObject<'_, 'py> for DTypeArgument {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(dtype) = value.cast::<DType>() {
            return Ok(Self(dtype.get().0));
        }
        match value.cast::<PyString>() {
            Ok(name) => Ok(Self(name.to_cow()?.parse::<Core>().map_err(Failure::from)?)),
            Err(_) => Err(wrong_type("dtype", &value, "a dynamo_llm.DType such as DType.BF16")),
        }
    }
}

impl DTypeArgument {
    /// What a manager has when nothing is said.
    pub(crate) const DEFAULT: Self = Self(Core::FP16);
}
