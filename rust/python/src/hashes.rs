//! `SequenceHash` and `HashList`, and hashes as arguments.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use dynamo_llm::{
    block_manager::Registration,
    tokens::{Key, SequenceHash as Core},
};
use pyo3::{
    exceptions::{PyIndexError, PyTypeError},
    prelude::*,
    types::{PyByteArray, PyBytes, PyInt, PyList, PySlice, PyString, PyTuple, PyType},
};

use crate::{
    argument::{integer, show, wrong_type},
    error::Failure,
    items::{Items, index},
};

/// 128-bit identity of a block: chained over its parent, its tokens and all that changes them.
#[pyclass(frozen, eq, hash, module = "dynamo_llm")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SequenceHash(pub(crate) Core);

#[pymethods]
impl SequenceHash {
    #[new]
    fn new(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        read_one(&"value", value).map(Self)
    }

    /// The hash for an engine's own hash of 8, 16 or 32 bytes, read big-endian.
    #[staticmethod]
    fn from_engine_hash(value: &[u8]) -> Result<Self, Failure> {
        Ok(Self(Core::from_engine_hash(value)?))
    }

    fn __int__(&self) -> u128 {
        self.0.as_u128()
    }

    fn __bytes__(&self) -> [u8; 16] {
        self.0.as_bytes()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("SequenceHash(0x{})", self.0)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyType>, (u128,)) {
        (slf.get_type(), (slf.get().0.as_u128(),))
    }
}

/// A run of hashes in a shared buffer.
#[derive(Clone)]
pub(crate) struct Hashes {
    buffer: Arc<[Core]>,
    start: usize,
    len: usize,
}

impl Hashes {
    pub(crate) fn new(hashes: Vec<Core>) -> Self {
        Self { len: hashes.len(), start: 0, buffer: hashes.into() }
    }

    pub(crate) fn as_slice(&self) -> &[Core] {
        &self.buffer[self.start..self.start + self.len]
    }

    /// The first `len`, or all if there are fewer.
    pub(crate) fn prefix(&self, len: usize) -> Self {
        Self { len: len.min(self.len), ..self.clone() }
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        self.as_slice().iter().copied().map(Key::from).collect()
    }

    /// The names of one sequence's blocks. What stands before a slice in its buffer is the parent
    /// of its first.
    pub(crate) fn registrations(&self) -> Vec<Registration> {
        let parent = self.start.checked_sub(1).map(|before| self.buffer[before]);
        Registration::chain(self.as_slice(), 0, parent)
    }
}

/// The hashes of one sequence of tokens: one buffer, a sequence of `SequenceHash`.
///
/// Slices share the buffer. The cheapest way to hand hashes to a pool.
#[pyclass(frozen, sequence, module = "dynamo_llm")]
pub(crate) struct HashList(pub(crate) Hashes);

#[pymethods]
impl HashList {
    #[new]
    #[pyo3(signature = (hashes = None))]
    fn new(hashes: Option<HashesArgument>) -> Self {
        Self(hashes.map_or_else(|| Hashes::new(Vec::new()), |hashes| hashes.0))
    }

    /// The list whose hashes are these bytes, 16 each, little-endian: the inverse of `bytes()`.
    #[staticmethod]
    fn from_bytes(data: &[u8]) -> Result<Self, Failure> {
        let (hashes, rest) = data.as_chunks();
        if !rest.is_empty() {
            let len = data.len();
            return Err(Failure::argument(format!("data: {len} bytes; give 16 for each hash")));
        }
        Ok(Self(Hashes::new(hashes.iter().copied().map(Core::from_le_bytes).collect())))
    }

    fn __len__(&self) -> usize {
        self.0.len
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        index: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Hashes { buffer, start, len } = &self.0;
        if let Ok(slice) = index.cast::<PySlice>() {
            let part = slice.indices(*len as isize)?;
            let hashes = if part.step == 1 || part.slicelength < 2 {
                let start = start + if part.slicelength == 0 { 0 } else { part.start as usize };
                Hashes { buffer: buffer.clone(), start, len: part.slicelength }
            } else {
                let position = |nth: usize| (part.start + nth as isize * part.step) as usize;
                let hashes = (0..part.slicelength).map(|nth| self.0.as_slice()[position(nth)]);
                Hashes::new(hashes.collect())
            };
            return Ok(Bound::new(py, Self(hashes))?.into_any());
        }
        let position = self::index("HashList", index, *len)?;
        Ok(Bound::new(py, SequenceHash(self.0.as_slice()[position]))?.into_any())
    }

    fn __iter__(&self) -> Items {
        Items::hashes(self.0.clone())
    }

    fn __contains__(&self, item: &Bound<'_, PyAny>) -> bool {
        item.cast::<SequenceHash>().is_ok_and(|hash| self.0.as_slice().contains(&hash.get().0))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| other.get().0.as_slice() == self.0.as_slice())
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.0.as_slice().hash(&mut hasher);
        hasher.finish()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, 16 * self.0.len, |bytes| {
            for (room, hash) in bytes.as_chunks_mut().0.iter_mut().zip(self.0.as_slice()) {
                *room = hash.as_bytes();
            }
            Ok(())
        })
    }

    fn __repr__(&self) -> String {
        let shown: Vec<String> =
            self.0.as_slice().iter().take(3).map(|hash| format!("0x{hash}")).collect();
        let more = if self.0.len > shown.len() { ", ..." } else { "" };
        format!("<HashList of {}: [{}{more}]>", self.0.len, shown.join(", "))
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let make = slf.get_type().getattr("from_bytes")?;
        Ok((make, (slf.get().__bytes__(slf.py())?,)))
    }
}

/// Hashes as an argument: a `HashList`, or a sequence of what stands for a hash.
pub(crate) struct HashesArgument(pub(crate) Hashes);

impl<'py> FromPyObject<'_, 'py> for HashesArgument {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(list) = value.cast::<HashList>() {
            return Ok(Self(list.get().0.clone()));
        }
        let items = elements("hashes", &value, "a HashList or a sequence of hashes")?;
        let read = |(position, item): (usize, PyResult<Bound<'py, PyAny>>)| {
            read_one(&format_args!("hashes[{position}]"), &item?)
        };
        let hashes: PyResult<Vec<Core>> = items.enumerate().map(read).collect();
        hashes.map(|hashes| Self(Hashes::new(hashes)))
    }
}

/// The elements of a sequence; text, bytes, sets and tables are none.
pub(crate) fn elements<'a, 'py>(
    argument: &str,
    value: &'a Bound<'py, PyAny>,
    expected: &str,
) -> PyResult<Box<dyn Iterator<Item = PyResult<Bound<'py, PyAny>>> + 'a>> {
    if let Ok(list) = value.cast::<PyList>() {
        return Ok(Box::new(list.iter().map(Ok)));
    }
    if let Ok(tuple) = value.cast::<PyTuple>() {
        return Ok(Box::new(tuple.iter().map(Ok)));
    }
    // A class has the methods of its objects, and none of them works.
    let class = value.is_instance_of::<PyType>();
    let text = class
        || value.is_instance_of::<PyString>()
        || value.is_instance_of::<PyBytes>()
        || value.is_instance_of::<PyByteArray>();
    // Sets have no order, and tables are no sequences though they can be indexed.
    let sequence = value.hasattr("__getitem__")? && value.hasattr("__len__")?;
    if text || !sequence || value.hasattr("keys")? {
        return Err(wrong_type(argument, value, expected));
    }
    Ok(Box::new(value.try_iter()?))
}

/// One hash: a `SequenceHash`, 16 little-endian bytes, or a number below 2**128.
fn read_one(argument: &dyn std::fmt::Display, value: &Bound<'_, PyAny>) -> PyResult<Core> {
    if let Ok(hash) = value.cast::<SequenceHash>() {
        return Ok(hash.get().0);
    }
    if let Ok(bytes) = value.cast::<PyBytes>() {
        let bytes = bytes.as_bytes();
        return bytes.try_into().map(Core::from_le_bytes).map_err(|_| {
            let len = bytes.len();
            Failure::argument(format!(
                "{argument}: {len} bytes; a hash has 16, little-endian (an engine's own hash goes \
                 through SequenceHash.from_engine_hash)"
            ))
            .into()
        });
    }
    // Before anything is asked that only a message needs.
    if value.is_instance_of::<PyInt>()
        && let Ok(number) = value.extract::<u128>()
    {
        return Ok(Core::from_u128(number));
    }
    if !value.hasattr("__index__")? {
        let value = show(value);
        return Err(PyTypeError::new_err(format!(
            "{argument} = {value} is no hash; give a SequenceHash, 16 bytes or an int"
        )));
    }
    integer::<u128>(&argument.to_string(), value)?.map(Core::from_u128).ok_or_else(|| {
        let value = show(value);
        Failure::argument(format!(
            "{argument} = {value}: out of range; a hash is a number from 0 to 2**128 - 1"
        ))
        .into()
    })
}

/// `index` out of `len`, as an exception.
pub(crate) fn out_of_range(what: &str, index: &Bound<'_, PyAny>, len: usize) -> PyErr {
    let index = show(index);
    PyIndexError::new_err(format!("{what} index {index} is out of range: there are {len}"))
}
