//! The Python face of `dynamo_llm`, as the extension module `dynamo_llm._core`.
//!
//! The only crate that names `PyO3`. It translates: arguments in, handles and errors out. No policy
//! lives here.
//!
//! What holds everywhere:
//! - No Rust thread holds or touches a Python object, and no Python object is made or dropped under
//!   a lock of ours. Our objects refer to no Python objects, so the garbage collector has no part in
//!   them; tensors that were lent are kept by their producers (`borrow`).
//! - Waiting and long work give the interpreter lock up (`wait`), and a lock of ours is never held
//!   across that.
//! - What can be awaited tells its end through an eventfd (`asyncio`), and what the core has to say
//!   waits for a thread of Python's (`logging`).
//! - What belongs to a process stays in it (`fork`).
//! - Integers of any size, floats, text and foreign objects are answered with an exception that
//!   names them (`argument`, `error`).

#![deny(unsafe_code)]

mod argument;
mod asyncio;
mod batch;
mod block;
mod block_list;
mod borrow;
mod closing;
mod disk;
mod dlpack;
mod dtype;
mod error;
mod fork;
mod gather;
mod geometry;
mod hashes;
mod items;
mod json;
mod layer;
mod logging;
mod manager;
mod matching;
mod onboard;
mod pool;
mod replay;
mod settings;
mod shared;
mod status;
mod tokens;
mod transfer;
mod view;
mod wait;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    error::register(module)?;
    module.add_class::<block::Block>()?;
    module.add_class::<block_list::BlockList>()?;
    module.add_class::<pool::BlockPool>()?;
    module.add_class::<manager::BlockManager>()?;
    module.add_class::<dtype::DType>()?;
    module.add_class::<hashes::HashList>()?;
    module.add_class::<layer::Layer>()?;
    module.add_class::<matching::Match>()?;
    module.add_class::<hashes::SequenceHash>()?;
    module.add_class::<transfer::Transfer>()?;
    module.add_function(wrap_pyfunction!(tokens::hash_tokens, module)?)?;
    asyncio::register(module)?;
    borrow::register(module)?;
    disk::register(module)?;
    logging::register(module)?;
    replay::register(module)
}
