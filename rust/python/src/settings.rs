//! From settings, as Python states them, to a manager.

use std::sync::Arc;

use dynamo_llm::block_manager::{
    KvBlockManager, KvBlockManagerConfig, ManagerError,
    config::{Config, ConfigError},
};
use pyo3::prelude::*;
use serde_json::Value;

use crate::{
    argument::{integer, show},
    borrow::Lending,
    dlpack::give_back,
    error::{Failure, Kind},
    shared::Shared,
};

/// Settings by the names that `BlockManager(...)` has for them.
const ARGUMENTS: &[(&str, &str)] = &[
    ("model.num_layers", "num_layers"),
    ("model.outer_dim", "outer_dim"),
    ("model.page_size", "page_size"),
    ("model.inner_dim", "inner_dim"),
    ("model.dtype", "dtype"),
    ("model.name", "model"),
    ("model.revision", "revision"),
    ("model.adapter", "adapter"),
    ("runtime.worker_id", "worker_id"),
    ("device.blocks", "device_blocks"),
    ("device.prefault", "prefault"),
    ("host.blocks", "host_blocks"),
    ("host.prefault", "prefault"),
    ("offload.policy", "offload_policy"),
];

/// How settings are called in errors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Names {
    /// As in files.
    Settings,
    /// As the arguments of `BlockManager(...)`.
    Arguments,
}

impl Names {
    fn refuse(self, error: ConfigError) -> Failure {
        let mut error = error;
        if let (Names::Arguments, ConfigError::Invalid { findings }) = (self, &mut error) {
            for finding in findings {
                for text in [&mut finding.field, &mut finding.message, &mut finding.remedy] {
                    for (setting, argument) in ARGUMENTS {
                        *text = text.replace(setting, argument);
                    }
                }
            }
        }
        error.into()
    }
}

/// What only the Python face knows.
#[derive(Clone, Copy)]
pub(crate) struct Extras {
    pub(crate) device_id: i32,
    pub(crate) zero_on_allocate: bool,
}

impl Extras {
    pub(crate) fn new(
        device_id: Option<&Bound<'_, PyAny>>,
        zero_on_allocate: bool,
    ) -> PyResult<Self> {
        let Some(value) = device_id else { return Ok(Self { device_id: 0, zero_on_allocate }) };
        match integer::<i32>("device_id", value)? {
            Some(device_id) if device_id >= 0 => Ok(Self { device_id, zero_on_allocate }),
            _ => {
                let (value, most) = (show(value), i32::MAX);
                let message = format!("device_id = {value}: no GPU has that number; 0 to {most}");
                Err(Failure::new(Kind::Config, message).into())
            }
        }
    }
}

/// Makes the manager. Memory may be committed here: other threads run meanwhile.
pub(crate) fn build(
    py: Python<'_>,
    settings: Result<Config, ConfigError>,
    names: Names,
    extras: Extras,
    lending: Lending<'_, '_>,
) -> PyResult<Arc<Shared>> {
    give_back(py);
    let refuse = |error| match error {
        ManagerError::Config(error) => names.refuse(error),
        other => other.into(),
    };
    let settings = settings.map_err(|error| names.refuse(error))?;
    settings.validate().map_err(|error| names.refuse(error))?;
    let device = lending.tier(&settings)?;
    let manager = py.detach(|| {
        let builder = KvBlockManagerConfig::builder().settings(settings);
        let builder = match device {
            Some(device) => builder.device_layout(device),
            None => builder,
        };
        KvBlockManager::new_blocking(builder.build()?)
    });
    // What a refused manager did not take.
    give_back(py);
    Ok(Arc::new(Shared::new(manager.map_err(refuse)?, extras)))
}

/// A whole number as a setting; what is none is refused here, where the argument has its name.
pub(crate) fn number(name: &str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Value> {
    let Some(value) = value else { return Ok(Value::Null) };
    let Some(number) = integer::<u64>(name, value)? else {
        let (value, most) = (show(value), u64::MAX);
        let message = format!("{name} = {value}: out of range; give a number from 0 to {most}");
        return Err(Failure::new(Kind::Config, message).into());
    };
    Ok(number.into())
}
