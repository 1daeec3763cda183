//! The Python face of `dynamo_llm`, as the extension module `dynamo_llm._core`.
//!
//! The only crate that names `PyO3`. It translates: arguments in, handles and errors out. No
//! policy lives here, and no Rust thread ever holds or touches a Python object.

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}
