//! `hash_tokens`, and token ids as callers hold them.
//!
//! Token ids come as lists, as buffers (numpy, `array.array`, `memoryview`) or as tensors that speak
//! `DLPack` (torch, jax on CPU). Whatever their type, a token is a whole number below 2**32; the first
//! that is not is named with its position.

use std::fmt::Display;

use dynamo_llm::tokens::{HashScheme, Identity, MediaItem, hash_tokens as core_hash_tokens};
use pyo3::{
    buffer::{Element, ElementType, PyBuffer, PyUntypedBuffer},
    exceptions::PyTypeError,
    prelude::*,
    sync::PyOnceLock,
    types::{PyByteArray, PyBytes, PyList, PyString, PyTuple, PyType},
};

use crate::{
    argument::{count, integer, show, wrong_type},
    dlpack,
    error::Failure,
    hashes::{HashList, Hashes, elements},
    wait::work,
};

/// What a token sequence may be.
const EXPECTED: &str = "a sequence of ints, or an array or tensor of integers in CPU memory";

/// Pages that take longer to hash than to get the interpreter lock back, measured in tokens, are as
/// many as `work` counts for blocks when a page counts sixteen.
const TOKENS_PER_UNIT: usize = 16;

/// Hash token ids page by page, each page chained to the one before it.
#[pyfunction]
#[pyo3(signature = (tokens, page_size, salt=None, *, adapter=None, media=None, scheme="blake3"))]
pub(crate) fn hash_tokens(
    py: Python<'_>,
    tokens: &Bound<'_, PyAny>,
    page_size: &Bound<'_, PyAny>,
    salt: Option<&Bound<'_, PyAny>>,
    adapter: Option<&str>,
    media: Option<&Bound<'_, PyAny>>,
    scheme: &str,
) -> PyResult<HashList> {
    let page_size = count("page_size", page_size)?;
    let identity = identity(salt, adapter, media, scheme)?;
    let tokens = read(tokens)?;
    let hashes = work(py, tokens.len() / TOKENS_PER_UNIT, || {
        core_hash_tokens(&tokens, page_size, &identity)
    });
    Ok(HashList(Hashes::new(hashes.map_err(Failure::from)?)))
}

/// What changes a sequence's bytes beside its tokens.
pub(crate) fn identity(
    salt: Option<&Bound<'_, PyAny>>,
    adapter: Option<&str>,
    media: Option<&Bound<'_, PyAny>>,
    scheme: &str,
) -> PyResult<Identity> {
    let scheme: HashScheme = scheme.parse().map_err(Failure::from)?;
    let mut identity = Identity::new().with_scheme(scheme);
    if let Some(salt) = salt {
        identity = identity.with_salt(text("salt", salt)?);
    }
    if let Some(adapter) = adapter {
        identity = identity.with_adapter(adapter);
    }
    if let Some(media) = media {
        let items = elements("media", media, "a sequence of (position, digest)")?;
        let items: PyResult<Vec<MediaItem>> =
            items.enumerate().map(|(nth, item)| media_item(nth, &item?)).collect();
        identity = identity.with_media(items?);
    }
    Ok(identity)
}

fn text(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(text.to_cow()?.into_owned());
    }
    let Ok(bytes) = value.cast::<PyBytes>() else {
        return Err(wrong_type(argument, value, "text"));
    };
    String::from_utf8(bytes.as_bytes().to_vec()).map_err(|_| {
        let value = show(value);
        Failure::argument(format!("{argument} = {value}: no UTF-8; give text, such as its hex()"))
            .into()
    })
}

fn media_item(nth: usize, item: &Bound<'_, PyAny>) -> PyResult<MediaItem> {
    let argument = format!("media[{nth}]");
    let Ok((position, digest)) = item.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>() else {
        return Err(wrong_type(&argument, item, "a tuple (position, digest)"));
    };
    let Ok(digest) = digest.cast::<PyBytes>() else {
        return Err(wrong_type(&format!("{argument} digest"), &digest, "bytes"));
    };
    let position = count(&format!("{argument} position"), &position)?;
    Ok(MediaItem::new(position, digest.as_bytes()))
}

/// Token ids, copied.
pub(crate) fn read(tokens: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    if tokens.is_instance_of::<PyType>() {
        return Err(wrong_type("tokens", tokens, EXPECTED));
    }
    let bare = tokens.is_instance_of::<PyBytes>() || tokens.is_instance_of::<PyByteArray>();
    if bare {
        return Err(wrong_type(
            "tokens",
            tokens,
            "their width too: numpy.frombuffer(data, dtype), or memoryview(data).cast(format)",
        ));
    }
    if let Ok(buffer) = PyUntypedBuffer::get(tokens) {
        return read_buffer(tokens, buffer);
    }
    if tokens.hasattr("__dlpack__")? {
        return dlpack::import::tokens(tokens);
    }
    if let Some(numbers) = array_of(tokens) {
        return read_buffer(&numbers, PyUntypedBuffer::get(&numbers)?);
    }
    let one = |(position, item): (usize, PyResult<Bound<'_, PyAny>>)| read_one(position, &item?);
    elements("tokens", tokens, EXPECTED)?.enumerate().map(one).collect()
}

/// The ids of a list as an `array.array`, if they are all ids. Its loop is inside the interpreter and
/// reads a list several times faster than the stable ABI can, which asks for each item.
fn array_of<'py>(tokens: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    static ARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if !tokens.is_exact_instance_of::<PyList>() && !tokens.is_exact_instance_of::<PyTuple>() {
        return None;
    }
    let array = ARRAY.import(tokens.py(), "array", "array").ok()?;
    // What it refuses is read again, to say which item it was.
    array.call1(("I", tokens)).ok()
}

/// One token id.
pub(crate) fn read_one(position: usize, item: &Bound<'_, PyAny>) -> PyResult<u32> {
    match item.extract::<u32>() {
        Ok(token) => Ok(token),
        // The slow way, to say what is wrong with it.
        Err(_) if item.hasattr("__index__")? => {
            let argument = format!("tokens[{position}]");
            integer::<u32>(&argument, item)?.ok_or_else(|| refused(position, show(item)).into())
        }
        Err(_) => {
            Err(wrong_type(&format!("tokens[{position}]"), item, "a token id, a whole number"))
        }
    }
}

pub(crate) fn refused(position: usize, value: impl Display) -> Failure {
    Failure::argument(format!(
        "tokens[{position}] = {value}: out of range; token ids are from 0 to {}",
        u32::MAX
    ))
}

/// Whole numbers as token ids.
pub(crate) fn narrow<T: Copy + Display + TryInto<u32>>(
    numbers: impl Iterator<Item = T>,
) -> Result<Vec<u32>, Failure> {
    numbers
        .enumerate()
        .map(|(position, number)| number.try_into().map_err(|_| refused(position, number)))
        .collect()
}

fn read_buffer(tokens: &Bound<'_, PyAny>, buffer: PyUntypedBuffer) -> PyResult<Vec<u32>> {
    if buffer.dimensions() != 1 {
        return Err(PyTypeError::new_err(format!(
            "tokens: an array of {} dimensions; give one, such as tokens.ravel()",
            buffer.dimensions()
        )));
    }
    if buffer.item_count() == 0 {
        return Ok(Vec::new());
    }
    // The element's code does not tell its byte order, the prefix does.
    let swapped = matches!(buffer.format().to_bytes().first(), Some(b'>' | b'!'));
    let kind = if swapped && buffer.item_size() > 1 {
        ElementType::Unknown
    } else {
        ElementType::from_format(buffer.format())
    };
    match kind {
        ElementType::UnsignedInteger { bytes: 1 } => typed::<u8>(tokens, buffer),
        ElementType::UnsignedInteger { bytes: 2 } => typed::<u16>(tokens, buffer),
        ElementType::UnsignedInteger { bytes: 4 } => {
            // The type that token ids have already: one copy, no checks.
            aligned::<u32>(buffer)?.to_vec(tokens.py())
        }
        ElementType::UnsignedInteger { bytes: 8 } => typed::<u64>(tokens, buffer),
        ElementType::SignedInteger { bytes: 1 } => typed::<i8>(tokens, buffer),
        ElementType::SignedInteger { bytes: 2 } => typed::<i16>(tokens, buffer),
        ElementType::SignedInteger { bytes: 4 } => typed::<i32>(tokens, buffer),
        ElementType::SignedInteger { bytes: 8 } => typed::<i64>(tokens, buffer),
        _ => Err(PyTypeError::new_err(format!(
            "tokens: an array of element type {:?} (buffer format); give integers in the \
             machine's byte order, such as tokens.astype(numpy.uint32)",
            buffer.format().to_string_lossy()
        ))),
    }
}

fn typed<T>(tokens: &Bound<'_, PyAny>, buffer: PyUntypedBuffer) -> PyResult<Vec<u32>>
where
    T: Element + Display + TryInto<u32>,
{
    Ok(narrow(aligned::<T>(buffer)?.to_vec(tokens.py())?.into_iter())?)
}

fn aligned<T: Element>(buffer: PyUntypedBuffer) -> PyResult<PyBuffer<T>> {
    buffer.into_typed().map_err(|error| {
        PyTypeError::new_err(format!("tokens: {error}; give a copy, such as tokens.copy()"))
    })
}
