//! Where an effective setting came from.

use std::{fmt, path::PathBuf};

use serde::{Serialize, Serializer};
use serde_json::Value;

/// The layer that had the last word on a setting, lowest first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// Nobody stated it.
    Default,
    /// A configuration file.
    File(PathBuf),
    /// The environment variable of this name.
    Environment(String),
    /// The program: a dictionary, a builder, a command-line option.
    Argument,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::File(path) => write!(f, "file {}", path.display()),
            Source::Environment(name) => write!(f, "environment {name}"),
            Source::Argument => f.write_str("argument"),
        }
    }
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One setting in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Effective {
    /// Dotted path of the setting.
    pub field: &'static str,
    /// Its value.
    pub value: Value,
    /// Who stated it.
    pub source: Source,
}

impl fmt::Display for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {} ({})", self.field, self.value, self.source)
    }
}
