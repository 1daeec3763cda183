//! Arguments as callers give them: any Python object, answered with a value or with an error that
//! names the argument, what was given and what would do. Never an `OverflowError`.

use std::time::Duration;

use pyo3::{
    exceptions::{PyOverflowError, PyTypeError},
    prelude::*,
};

use crate::error::Failure;

/// The longest wait that is told apart from waiting for ever: a hundred years.
const LONGEST_SECONDS: f64 = 100.0 * 365.0 * 86_400.0;

/// A value as it may stand in a message: short, whatever was given.
pub(crate) fn show(value: &Bound<'_, PyAny>) -> String {
    const LONGEST: usize = 80;
    // A `repr` may fail: integers of thousands of digits have none.
    let Ok(text) = value.repr() else { return format!("<{}>", type_name(value)) };
    let text = text.to_string_lossy();
    let mut shown: String = text.chars().take(LONGEST).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string())
}

/// `argument` is of the wrong type.
pub(crate) fn wrong_type(argument: &str, value: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    let (value, kind) = (show(value), type_name(value));
    PyTypeError::new_err(format!("{argument} = {value} ({kind}); give {expected}"))
}

/// A whole number of any size that `T` can hold, `None` for one that it cannot.
pub(crate) fn integer<'py, T>(argument: &str, value: &Bound<'py, PyAny>) -> PyResult<Option<T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    match value.extract::<T>() {
        Ok(number) => Ok(Some(number)),
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => Ok(None),
        Err(_) => Err(wrong_type(argument, value, "a whole number")),
    }
}

/// A number of things, from 0 to what memory can address.
pub(crate) fn count(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    integer(argument, value)?.ok_or_else(|| {
        let value = show(value);
        Failure::argument(format!(
            "{argument} = {value}: out of range; give a whole number from 0 to {}",
            usize::MAX
        ))
        .into()
    })
}

/// A time in seconds; `None` when nothing was said.
pub(crate) fn seconds(
    argument: &str,
    value: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Duration>> {
    let Some(value) = value else { return Ok(None) };
    let number = match value.extract::<f64>() {
        Ok(number) => number,
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => {
            return Err(out_of_time(argument, value));
        }
        Err(_) => return Err(wrong_type(argument, value, "seconds, or None")),
    };
    if number.is_nan() || number < 0.0 {
        return Err(out_of_time(argument, value));
    }
    // Longer than anybody waits, infinity included, is for ever, near enough.
    Ok(Some(Duration::from_secs_f64(number.min(LONGEST_SECONDS))))
}

fn out_of_time(argument: &str, value: &Bound<'_, PyAny>) -> PyErr {
    let value = show(value);
    Failure::argument(format!(
        "{argument} = {value}: no time to wait; give seconds from 0 on, or None"
    ))
    .into()
}
