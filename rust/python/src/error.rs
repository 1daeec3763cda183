//! The exceptions, and how errors of the core become them.
//!
//! One family under `DynamoError`; where a built-in fits, an exception is that too, so that
//! `except ValueError` works as anywhere. The classes are made by calling `type`: the stable ABI
//! knows no native exceptions with several bases.

use std::{error::Error, fmt::Display};

use dynamo_llm::{
    block_manager::{
        BlockError, BlockPoolError, ManagerError, StorageError, TokenError, TransferError,
        config::ConfigError,
    },
    common::dtype::ParseDTypeError,
};
use pyo3::{
    exceptions::{PyException, PyMemoryError, PyRuntimeError, PyTimeoutError, PyValueError},
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyTuple, PyType},
};

/// Which exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A setting is impossible or unknown.
    Config,
    /// An argument of a verb is impossible.
    Argument,
    /// Not possible now.
    Manager,
    /// Too few blocks.
    NotEnough,
    /// Memory cannot be had or reached.
    Storage,
    /// The caller's time is up.
    Timeout,
}

/// An error of ours that is no Python object yet, so it may be made anywhere.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: Kind,
    message: String,
}

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl Display) -> Self {
        Self { kind, message: message.to_string() }
    }

    pub(crate) fn argument(message: impl Display) -> Self {
        Self::new(Kind::Argument, message)
    }

    pub(crate) fn manager(message: impl Display) -> Self {
        Self::new(Kind::Manager, message)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        Python::attach(|py| match Exceptions::get(py) {
            Ok(exceptions) => {
                PyErr::from_type(exceptions.of(failure.kind).bind(py).clone(), failure.message)
            }
            Err(error) => error,
        })
    }
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message.push_str(": ");
        message.push_str(&error.to_string());
        cause = error.source();
    }
    message
}

macro_rules! failures {
    ($($error:ty => $kind:ident),* $(,)?) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::new(Kind::$kind, chain(&error))
            }
        }
    )*};
}

failures! {
    ConfigError => Config,
    TokenError => Argument,
    ParseDTypeError => Config,
    StorageError => Storage,
    TransferError => Manager,
}

impl From<BlockError> for Failure {
    fn from(error: BlockError) -> Self {
        match error {
            BlockError::StorageError(error) => error.into(),
            BlockError::Tokens(error) => error.into(),
            other => Self::manager(chain(&other)),
        }
    }
}

impl From<BlockPoolError> for Failure {
    fn from(error: BlockPoolError) -> Self {
        let kind = match error {
            BlockPoolError::NotEnoughBlocksAvailable(..) => Kind::NotEnough,
            _ => Kind::Manager,
        };
        Self::new(kind, chain(&error))
    }
}

impl From<ManagerError> for Failure {
    fn from(error: ManagerError) -> Self {
        match error {
            ManagerError::Config(error) => error.into(),
            ManagerError::Storage { tier, blocks, source } => Self::new(
                Kind::Storage,
                format!("{tier}_blocks = {blocks}: the memory cannot be had: {source}"),
            ),
            ManagerError::Layout { tier, source } => {
                Self::new(Kind::Config, format!("{tier} tier: {}", chain(&source)))
            }
            ManagerError::Disk { .. } => Self::new(Kind::Storage, error),
            other => Self::manager(chain(&other)),
        }
    }
}

/// The classes.
pub(crate) struct Exceptions {
    dynamo: Py<PyType>,
    config: Py<PyType>,
    argument: Py<PyType>,
    manager: Py<PyType>,
    not_enough: Py<PyType>,
    storage: Py<PyType>,
    timeout: Py<PyType>,
}

static EXCEPTIONS: PyOnceLock<Exceptions> = PyOnceLock::new();

impl Exceptions {
    fn get(py: Python<'_>) -> PyResult<&'static Self> {
        EXCEPTIONS.get_or_try_init(py, || Self::make(py))
    }

    fn make(py: Python<'_>) -> PyResult<Self> {
        let dynamo = class(
            py,
            "DynamoError",
            "The base of every error of this package.",
            &[&py.get_type::<PyException>()],
        )?;
        let config = class(
            py,
            "ConfigError",
            "A setting is impossible or unknown; the message names field, value and remedy.",
            &[&dynamo, &py.get_type::<PyValueError>()],
        )?;
        let argument = class(
            py,
            "ArgumentError",
            "An argument of a verb is impossible; the message names it, its value and a remedy.",
            &[&dynamo, &py.get_type::<PyValueError>()],
        )?;
        let manager = class(
            py,
            "BlockManagerError",
            "The manager, a pool or a block cannot do what was asked now.",
            &[&dynamo, &py.get_type::<PyRuntimeError>()],
        )?;
        let not_enough = class(
            py,
            "NotEnoughBlocksError",
            "Fewer blocks are available than were asked for; the message states both numbers.",
            &[&manager],
        )?;
        let storage = class(
            py,
            "StorageError",
            "Memory cannot be had or reached; states what was requested, available, the limit.",
            &[&dynamo, &py.get_type::<PyMemoryError>()],
        )?;
        let timeout = class(
            py,
            "WaitTimeoutError",
            "A wait ended before what it waited for; that goes on.",
            &[&dynamo, &py.get_type::<PyTimeoutError>()],
        )?;
        Ok(Self {
            dynamo: dynamo.unbind(),
            config: config.unbind(),
            argument: argument.unbind(),
            manager: manager.unbind(),
            not_enough: not_enough.unbind(),
            storage: storage.unbind(),
            timeout: timeout.unbind(),
        })
    }

    fn of(&self, kind: Kind) -> &Py<PyType> {
        match kind {
            Kind::Config => &self.config,
            Kind::Argument => &self.argument,
            Kind::Manager => &self.manager,
            Kind::NotEnough => &self.not_enough,
            Kind::Storage => &self.storage,
            Kind::Timeout => &self.timeout,
        }
    }
}

/// A new class with several bases.
fn class<'py>(
    py: Python<'py>,
    name: &str,
    doc: &str,
    bases: &[&Bound<'py, PyType>],
) -> PyResult<Bound<'py, PyType>> {
    let namespace = PyDict::new(py);
    namespace.set_item("__module__", "dynamo_llm")?;
    namespace.set_item("__doc__", doc)?;
    let bases = PyTuple::new(py, bases)?;
    let class = py.get_type::<PyType>().call1((name, bases, namespace))?;
    Ok(class.cast_into::<PyType>()?)
}

/// Adds the classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let all = Exceptions::get(py)?;
    for class in [
        &all.dynamo,
        &all.config,
        &all.argument,
        &all.manager,
        &all.not_enough,
        &all.storage,
        &all.timeout,
    ] {
        let class = class.bind(py);
        module.add(class.name()?, class)?;
    }
    Ok(())
}
