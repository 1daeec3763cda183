//! `BlockList`: blocks that are held together, and blocks as arguments.

use std::sync::Arc;

use pyo3::{
    prelude::*,
    types::{PyAny, PyList, PySlice, PyTuple, PyType},
};

use crate::{
    batch::Batch,
    block::Block,
    dlpack::{self, Terms},
    dtype::DType,
    error::Failure,
    fork::Guarded,
    geometry::Extent,
    hashes::elements,
    items::{Items, index},
    view::View,
};

/// Blocks that are held together: a sequence, and a context manager that releases them.
///
/// Blocks are made when they are asked for. A slice shares its blocks with the list that it was cut
/// from: what releases or registers them through one makes them invalid in both.
#[pyclass(frozen, sequence, module = "dynamo_llm")]
pub(crate) struct BlockList {
    batch: Guarded<Arc<Batch>>,
    view: View,
    bytes: bool,
}

impl BlockList {
    pub(crate) fn new(batch: Batch) -> Self {
        let view = View::whole(batch.len());
        Self { batch: Guarded::new(Arc::new(batch)), view, bytes: false }
    }

    pub(crate) fn count(&self) -> usize {
        self.view.len()
    }

    pub(crate) fn block(&self, nth: usize) -> Result<Block, Failure> {
        Ok(Block::new(self.batch.share()?, self.view.at(nth), self.bytes))
    }

    fn again(&self) -> Result<Self, Failure> {
        Ok(Self { batch: self.batch.share()?, ..*self })
    }

    fn extent(&self) -> Result<Extent, Failure> {
        let tier = self.batch.get()?.tier().clone();
        Ok(Extent { tier, layer: None, list: true, bytes: self.bytes })
    }
}

#[pymethods]
impl BlockList {
    /// The slots of the blocks, in order.
    #[getter]
    fn block_ids(&self) -> Result<Vec<u32>, Failure> {
        self.batch.get()?.ids(self.view)
    }

    /// `(len, num_layers, outer_dim, page_size, inner_dim)`, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.extent()?.shape(self.view.len()))
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

    /// Give the blocks back, last first, so that a chain loses its end before its beginning.
    fn release(&self) -> Result<(), Failure> {
        self.batch.get()?.release(self.view);
        Ok(())
    }

    /// The blocks, as a list.
    fn to_list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let blocks = (0..self.view.len()).map(|nth| self.block(nth));
        PyList::new(py, blocks.collect::<Result<Vec<_>, _>>()?)
    }

    /// The same blocks as bytes, for consumers that do not know their type.
    fn view_uint8(&self) -> Result<Self, Failure> {
        Ok(Self { bytes: true, ..self.again()? })
    }

    /// Export the blocks as one tensor, where one describes them; as `Block.__dlpack__`.
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
        dlpack::export(py, self.batch.get()?, self.view, self.extent()?, &terms)
    }

    /// Device type and number as `DLPack` counts them; `(1, 0)` is ordinary memory.
    fn __dlpack_device__(&self) -> Result<(i32, i32), Failure> {
        self.batch.get()?;
        Ok(dlpack::device())
    }

    fn __len__(&self) -> usize {
        self.view.len()
    }

    fn __bool__(&self) -> Result<bool, Failure> {
        Ok(self.batch.get()?.any_valid(self.view))
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        index: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(slice) = index.cast::<PySlice>() {
            let view = self.view.slice(&slice.indices(self.view.len() as isize)?);
            return Ok(Bound::new(py, Self { view, ..self.again()? })?.into_any());
        }
        let nth = self::index("BlockList", index, self.view.len())?;
        Ok(Bound::new(py, self.block(nth)?)?.into_any())
    }

    fn __iter__(&self) -> Result<Items, Failure> {
        Ok(Items::blocks(self.again()?))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Releases. In a forked child nothing happens: the blocks are the parent's.
    fn __exit__(
        &self,
        _exc_type: Option<&Bound<'_, PyType>>,
        _exc_value: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) {
        if let Ok(batch) = self.batch.get() {
            batch.release(self.view);
        }
    }

    fn __repr__(&self) -> String {
        let len = self.view.len();
        let Ok(batch) = self.batch.get() else {
            return format!("<BlockList of {len} of a parent process>");
        };
        let state = match (batch.any_valid(self.view), batch.is_registered()) {
            (false, _) if len > 0 => "no longer valid",
            (_, true) => "registered",
            (_, false) => "writable",
        };
        format!("<BlockList of {len} in the {} tier, {state}>", batch.tier().tier())
    }
}

/// Blocks as an argument: a `BlockList` or a sequence of `Block`, from one batch or several.
pub(crate) struct Selection {
    pub(crate) parts: Vec<(Arc<Batch>, View)>,
}

impl Selection {
    pub(crate) fn new(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(list) = value.cast::<BlockList>() {
            let list = list.get();
            return Ok(Self { parts: vec![(list.batch.get()?.clone(), list.view)] });
        }
        if value.is_instance_of::<Block>() {
            return Err(crate::argument::wrong_type(argument, value, "a list: [block]"));
        }
        let mut parts = Vec::new();
        let items = elements(argument, value, "a BlockList or a sequence of Block")?;
        for (nth, item) in items.enumerate() {
            let item = item?;
            let Ok(block) = item.cast::<Block>() else {
                let argument = format!("{argument}[{nth}]");
                return Err(crate::argument::wrong_type(&argument, &item, "a Block"));
            };
            let (batch, position) = block.get().place()?;
            parts.push((batch.clone(), View::one(position)));
        }
        Ok(Self { parts })
    }

    /// Blocks in all.
    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(|(_, view)| view.len()).sum()
    }
}
