//! What a consumer asks of an export.

use pyo3::{
    exceptions::{PyBufferError, PyTypeError},
    prelude::*,
    types::PyTuple,
};

use super::abi::DEVICE_CPU;
use crate::argument::{integer, show, wrong_type};

/// The arguments of `__dlpack__`, checked against what ordinary memory can give.
pub(crate) struct Terms {
    /// Whether the capsule has a version and flags.
    pub(super) versioned: bool,
    /// Whether a copy is asked for.
    pub(super) copy: bool,
}

impl Terms {
    pub(crate) fn new(
        stream: Option<&Bound<'_, PyAny>>,
        max_version: Option<&Bound<'_, PyAny>>,
        dl_device: Option<&Bound<'_, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Self> {
        if let Some(stream) = stream {
            integer::<i64>("stream", stream)?;
            let stream = show(stream);
            return Err(PyBufferError::new_err(format!(
                "stream = {stream}: the block lies in ordinary memory, which has no streams; pass \
                 None"
            )));
        }
        if let Some(device) = dl_device {
            let asked = pair("dl_device", device)?;
            if asked != (Some(i64::from(DEVICE_CPU)), Some(0)) {
                let device = show(device);
                return Err(PyBufferError::new_err(format!(
                    "dl_device = {device}: the block lies in ordinary memory, ({DEVICE_CPU}, 0); \
                     export it there and let the consumer copy it"
                )));
            }
        }
        let versioned = match max_version {
            None => false,
            // A version beyond all numbers is above 1 as well.
            Some(version) => pair("max_version", version)?.0.is_none_or(|major| major >= 1),
        };
        Ok(Self { versioned, copy: copy == Some(true) })
    }
}

/// Two whole numbers; `None` for one beyond 64 bits.
fn pair(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<(Option<i64>, Option<i64>)> {
    let expected = "a tuple of two whole numbers";
    let Ok(tuple) = value.cast::<PyTuple>() else {
        return Err(wrong_type(argument, value, expected));
    };
    if tuple.len() != 2 {
        let value = show(value);
        return Err(PyTypeError::new_err(format!("{argument} = {value}; give {expected}")));
    }
    Ok((integer(argument, &tuple.get_item(0)?)?, integer(argument, &tuple.get_item(1)?)?))
}
