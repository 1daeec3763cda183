//! Trees of settings and figures, between Python and the core.

use pyo3::{
    IntoPyObjectExt,
    exceptions::PyTypeError,
    prelude::*,
    types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType},
};
use serde_json::{Map, Number, Value};

use crate::{
    argument::show,
    dtype::DType,
    error::{Failure, Kind},
};

/// Deeper than any configuration; a list that contains itself ends here.
const DEEPEST: usize = 16;

/// A tree of the core as Python objects.
pub(crate) fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Null => Ok(py.None().into_bound(py)),
        Value::Bool(flag) => flag.into_bound_py_any(py),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => number.into_bound_py_any(py),
            (_, Some(number)) => number.into_bound_py_any(py),
            _ => number.as_f64().into_bound_py_any(py),
        },
        Value::String(text) => text.into_bound_py_any(py),
        Value::Array(items) => {
            let list = PyList::empty(py);
            for item in items {
                list.append(to_python(py, item)?)?;
            }
            Ok(list.into_any())
        }
        Value::Object(table) => {
            let dict = PyDict::new(py);
            for (key, value) in table {
                dict.set_item(key, to_python(py, value)?)?;
            }
            Ok(dict.into_any())
        }
    }
}

/// Settings from Python objects: dicts, lists, text, numbers, paths, `DType`.
pub(crate) fn from_python(path: &str, value: &Bound<'_, PyAny>) -> PyResult<Value> {
    read(path, value, 0)
}

fn read(path: &str, value: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if depth > DEEPEST {
        let message =
            format!("{path}: nested more than {DEEPEST} deep; settings are tables of values");
        return Err(Failure::new(Kind::Config, message).into());
    }
    if value.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(flag.is_true().into());
    }
    if value.is_instance_of::<PyInt>() {
        return Ok(number(value));
    }
    if value.is_instance_of::<PyFloat>() {
        let number = Number::from_f64(value.extract()?);
        return Ok(number.map_or_else(|| show(value).into(), Value::Number));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(text.to_cow()?.into_owned().into());
    }
    if let Ok(dtype) = value.cast::<DType>() {
        return Ok(dtype.get().0.name().into());
    }
    if let Ok(dict) = value.cast::<PyDict>() {
        let mut table = Map::new();
        for (key, value) in dict.iter() {
            let Ok(key) = key.cast::<PyString>() else {
                let key = show(&key);
                return Err(PyTypeError::new_err(format!(
                    "{path}: the key {key} is no text; names of settings are"
                )));
            };
            let key = key.to_cow()?.into_owned();
            let value = read(&format!("{path}.{key}"), &value, depth + 1)?;
            table.insert(key, value);
        }
        return Ok(Value::Object(table));
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let items = value.try_iter()?;
        return items.map(|item| read(path, &item?, depth + 1)).collect();
    }
    let class = value.is_instance_of::<PyType>();
    // Arrays have the method, too, and only those of one number answer.
    if let Ok(index) = value.call_method0("__index__")
        && index.is_instance_of::<PyInt>()
    {
        return Ok(number(&index));
    }
    if !class && value.hasattr("__fspath__")? {
        return read(path, &value.call_method0("__fspath__")?, depth + 1);
    }
    Err(crate::argument::wrong_type(path, value, "text, a number, a flag or a table"))
}

/// An integer of any size: what the tree has no number for becomes text, and is refused there.
fn number(value: &Bound<'_, PyAny>) -> Value {
    if let Ok(number) = value.extract::<u64>() {
        number.into()
    } else if let Ok(number) = value.extract::<i64>() {
        number.into()
    } else {
        show(value).into()
    }
}
