//! `Layer`: one layer of a block as a tensor.

use std::sync::Arc;

use pyo3::{prelude::*, types::PyTuple};

use crate::{
    batch::Batch,
    block::Block,
    dlpack::{self, Terms},
    dtype::DType,
    error::Failure,
    fork::Guarded,
    geometry::Extent,
    view::View,
};

/// One layer of a block: its K and V, as a tensor. Valid as long as its block.
#[pyclass(frozen, module = "dynamo_llm")]
pub(crate) struct Layer {
    batch: Guarded<Arc<Batch>>,
    position: usize,
    number: usize,
    bytes: bool,
}

impl Layer {
    pub(crate) fn new(block: &Block, number: usize) -> Result<Self, Failure> {
        let (_, position) = block.place()?;
        let bytes = block.shows_bytes();
        Ok(Self { batch: block.batch().share()?, position, number, bytes })
    }

    fn extent(&self) -> Result<Extent, Failure> {
        let tier = self.batch.get()?.tier().clone();
        Ok(Extent { tier, layer: Some(self.number), list: false, bytes: self.bytes })
    }
}

#[pymethods]
impl Layer {
    /// `(outer_dim, page_size, inner_dim)`, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.extent()?.shape(1))
    }

    /// The type of an element.
    #[getter]
    fn dtype(&self) -> Result<DType, Failure> {
        Ok(DType(self.extent()?.dtype()))
    }

    /// Number of the GPU, where there is one.
    #[getter]
    fn device_id(&self) -> Result<i32, Failure> {
        Ok(self.batch.get()?.device_id())
    }

    /// The same layer as bytes, for consumers that do not know its type.
    fn view_uint8(&self) -> Result<Self, Failure> {
        Ok(Self { batch: self.batch.share()?, bytes: true, ..*self })
    }

    /// Export the layer; as `Block.__dlpack__`.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<&Bound<'py, PyAny>>,
        dl_device: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let terms = Terms::new(stream, max_version, dl_device, copy)?;
        let view = View::one(self.position);
        dlpack::export(py, self.batch.get()?, view, self.extent()?, &terms)
    }

    /// Device type and number as `DLPack` counts them; `(1, 0)` is ordinary memory.
    fn __dlpack_device__(&self) -> Result<(i32, i32), Failure> {
        self.batch.get()?;
        Ok(dlpack::device())
    }

    fn __bool__(&self) -> Result<bool, Failure> {
        Ok(self.batch.get()?.is_valid(self.position))
    }

    fn __repr__(&self) -> String {
        let Ok(extent) = self.extent() else {
            return "<Layer of a parent process>".to_owned();
        };
        let state = match self.__bool__() {
            Ok(true) => "",
            _ => ", no longer valid",
        };
        format!("<Layer {}, {} {:?}{state}>", self.number, extent.dtype(), extent.shape(1))
    }
}
