//! `Block`: one block as a tensor, and while it is writable, its tokens.

use std::sync::Arc;

use dynamo_llm::{block_manager::BlockError, tokens::TokenBlock};
use pyo3::{
    prelude::*,
    types::{PyList, PyTuple},
};

use crate::{
    argument::count,
    batch::{Batch, Filling},
    dlpack::{self, Terms},
    dtype::DType,
    error::Failure,
    fork::Guarded,
    geometry::Extent,
    hashes::SequenceHash,
    items::{Items, index},
    layer::Layer,
    tokens,
    view::View,
};

/// One block: the keys and values of `page_size` tokens over all layers, as a tensor.
///
/// A sequence of its layers. Made by allocating, registering, matching; becomes invalid, and false,
/// when its list is released or registered. A registered block is shared and exports read-only.
#[pyclass(frozen, sequence, module = "dynamo_llm")]
pub(crate) struct Block {
    batch: Guarded<Arc<Batch>>,
    position: usize,
    bytes: bool,
}

impl Block {
    pub(crate) fn new(batch: Guarded<Arc<Batch>>, position: usize, bytes: bool) -> Self {
        Self { batch, position, bytes }
    }

    /// The batch and where in it the block is.
    pub(crate) fn place(&self) -> Result<(&Arc<Batch>, usize), Failure> {
        Ok((self.batch.get()?, self.position))
    }

    pub(crate) fn batch(&self) -> &Guarded<Arc<Batch>> {
        &self.batch
    }

    pub(crate) fn shows_bytes(&self) -> bool {
        self.bytes
    }

    pub(crate) fn extent(&self) -> Result<Extent, Failure> {
        let tier = self.batch.get()?.tier().clone();
        Ok(Extent { tier, layer: None, list: false, bytes: self.bytes })
    }

    fn again(&self) -> Result<Self, Failure> {
        Ok(Self { batch: self.batch.share()?, ..*self })
    }

    fn fill<T>(&self, with: impl FnOnce(&mut Filling) -> Result<T, Failure>) -> Result<T, Failure> {
        self.batch.get()?.fill(self.position, with)
    }

    /// Runs `with` on the tokens of a block that is being filled with some.
    fn with_tokens<T>(
        &self,
        with: impl FnOnce(&mut TokenBlock) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.fill(|filling| {
            if filling.complete {
                return Err(BlockError::AlreadyComplete.into());
            }
            with(filling.tokens.as_mut().ok_or(BlockError::NoSequence)?)
        })
    }

    fn page_size(&self) -> Result<usize, Failure> {
        Ok(self.batch.get()?.tier().layout().page_size())
    }

    fn start(&self, tokens: TokenBlock) -> Result<(), Failure> {
        self.fill(|filling| {
            if filling.complete {
                return Err(BlockError::AlreadyComplete.into());
            }
            filling.tokens = Some(tokens);
            Ok(())
        })
    }
}

#[pymethods]
impl Block {
    /// The slot of the block in its tier.
    #[getter]
    fn block_id(&self) -> Result<u32, Failure> {
        let (batch, position) = self.place()?;
        Ok(batch.ids(View::one(position))?[0])
    }

    /// Number of the GPU, where there is one.
    #[getter]
    fn device_id(&self) -> Result<i32, Failure> {
        Ok(self.batch.get()?.device_id())
    }

    /// `(num_layers, outer_dim, page_size, inner_dim)`, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.extent()?.shape(1))
    }

    /// The type of an element.
    #[getter]
    fn dtype(&self) -> Result<DType, Failure> {
        Ok(DType(self.extent()?.dtype()))
    }

    /// What the block is registered under, or the hash of its committed tokens; else `None`.
    fn sequence_hash(&self) -> Result<Option<SequenceHash>, Failure> {
        let (batch, position) = self.place()?;
        Ok(batch.sequence_hash(position)?.map(SequenceHash))
    }

    /// The same block as bytes, for consumers that do not know its type.
    fn view_uint8(&self) -> Result<Self, Failure> {
        Ok(Self { bytes: true, ..self.again()? })
    }

    /// The layers, as a list.
    fn to_list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let layers = (0..self.__len__()?).map(|layer| Layer::new(self, layer));
        PyList::new(py, layers.collect::<Result<Vec<_>, _>>()?)
    }

    /// Start a sequence of tokens with this block.
    #[pyo3(signature = (salt=None, *, adapter=None, media=None, scheme="blake3"))]
    fn init_sequence(
        &self,
        salt: Option<&Bound<'_, PyAny>>,
        adapter: Option<&str>,
        media: Option<&Bound<'_, PyAny>>,
        scheme: &str,
    ) -> PyResult<()> {
        let identity = tokens::identity(salt, adapter, media, scheme)?;
        let tokens = TokenBlock::new(self.page_size()?, &identity).map_err(Failure::from)?;
        Ok(self.start(tokens)?)
    }

    /// Continue the sequence of `previous`, which must be full.
    fn continue_sequence(&self, previous: &Bound<'_, Self>) -> Result<(), Failure> {
        let following = previous.get().fill(|filling| {
            let tokens = filling.tokens.as_ref().ok_or(BlockError::NoSequence)?;
            let remaining = tokens.remaining();
            Ok(tokens.following().ok_or(BlockError::NotFull { remaining })?)
        })?;
        if following.page_size() != self.page_size()? {
            return Err(Failure::argument(format!(
                "previous: its pages have {} tokens, this block has {}; blocks of one sequence \
                 have the same",
                following.page_size(),
                self.page_size()?
            )));
        }
        self.start(following)
    }

    /// Add one token.
    fn add_token(&self, token: &Bound<'_, PyAny>) -> PyResult<()> {
        let token = tokens::read_one(0, token)?;
        Ok(self.with_tokens(|tokens| Ok(tokens.push(token)?))?)
    }

    /// Add tokens, all or none.
    fn add_tokens(&self, tokens: &Bound<'_, PyAny>) -> PyResult<()> {
        let given = tokens::read(tokens)?;
        Ok(self.with_tokens(|tokens| Ok(tokens.extend(&given)?))?)
    }

    /// Take the last token off; `None` when there is none.
    fn pop_token(&self) -> Result<Option<u32>, Failure> {
        self.with_tokens(|tokens| Ok(tokens.pop()))
    }

    /// Take the last `n` tokens off, or all if there are fewer.
    fn pop_tokens(&self, n: &Bound<'_, PyAny>) -> PyResult<()> {
        let count = count("n", n)?;
        Ok(self.with_tokens(|tokens| {
            tokens.truncate(tokens.tokens().len().saturating_sub(count));
            Ok(())
        })?)
    }

    /// Declare tokens and bytes final; the block has its hash from now on.
    fn commit(&self) -> Result<SequenceHash, Failure> {
        self.fill(|filling| {
            if filling.complete {
                return Err(BlockError::AlreadyComplete.into());
            }
            let tokens = filling.tokens.as_ref().ok_or(BlockError::NoSequence)?;
            let remaining = tokens.remaining();
            let hash = tokens.sequence_hash().ok_or(BlockError::NotFull { remaining })?;
            filling.complete = true;
            Ok(SequenceHash(hash))
        })
    }

    /// The tokens so far.
    #[getter]
    fn tokens(&self) -> Result<Vec<u32>, Failure> {
        self.fill(|filling| {
            Ok(filling.tokens.as_ref().map_or_else(Vec::new, |tokens| tokens.tokens().to_vec()))
        })
    }

    /// Tokens that the block lacks; a whole page before it has a sequence.
    #[getter]
    fn remaining(&self) -> Result<usize, Failure> {
        let page_size = self.page_size()?;
        self.fill(|filling| Ok(filling.tokens.as_ref().map_or(page_size, TokenBlock::remaining)))
    }

    /// Whether tokens and bytes are final: committed, or registered.
    #[getter]
    fn is_complete(&self) -> Result<bool, Failure> {
        let (batch, position) = self.place()?;
        Ok(batch.sequence_hash(position)?.is_some())
    }

    /// Export the block to `np.from_dlpack` and its like, without a copy.
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
        let (batch, position) = self.place()?;
        dlpack::export(py, batch, View::one(position), self.extent()?, &terms)
    }

    /// Device type and number as `DLPack` counts them; `(1, 0)` is ordinary memory.
    fn __dlpack_device__(&self) -> Result<(i32, i32), Failure> {
        self.batch.get()?;
        Ok(dlpack::device())
    }

    fn __len__(&self) -> Result<usize, Failure> {
        Ok(self.batch.get()?.tier().layout().num_layers())
    }

    fn __bool__(&self) -> Result<bool, Failure> {
        let (batch, position) = self.place()?;
        Ok(batch.is_valid(position))
    }

    fn __getitem__(&self, layer: &Bound<'_, PyAny>) -> PyResult<Layer> {
        let layer = index("Block", layer, self.__len__()?)?;
        Ok(Layer::new(self, layer)?)
    }

    fn __iter__(&self) -> Result<Items, Failure> {
        Ok(Items::layers(self.again()?, self.__len__()?))
    }

    fn __repr__(&self) -> String {
        let Ok((batch, position)) = self.place() else {
            return "<Block of a parent process>".to_owned();
        };
        let Ok(ids) = batch.ids(View::one(position)) else {
            return "<Block, no longer valid>".to_owned();
        };
        let hash = batch.sequence_hash(position).ok().flatten();
        let state = match (batch.is_registered(), hash) {
            (true, Some(hash)) => format!("registered as {hash}"),
            (_, Some(hash)) => format!("committed as {hash}"),
            (_, None) => "writable".to_owned(),
        };
        let tier = batch.tier().tier();
        let (dtype, shape) = match self.extent() {
            Ok(extent) => (extent.dtype(), extent.shape(1)),
            Err(_) => return "<Block>".to_owned(),
        };
        format!("<Block {} of the {tier} tier, {dtype} {shape:?}, {state}>", ids[0])
    }
}
