//! Layers of settings laid over each other: argument over environment over file over default.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    Config, ConfigError, Severity, Source,
    reading::{Reading, Variable},
    schema::{FILE_VARIABLE, PREFIX},
};

/// Gathers settings from several places; the order of the calls does not matter across layers.
///
/// ```
/// use dynamo_llm::block_manager::config::ConfigLayers;
///
/// let config = ConfigLayers::new()
///     .arguments(serde_json::json!({"host": {"blocks": 8}}))
///     .environment([("DYNAMO_LLM_HOST_BLOCKS", "4"), ("DYNAMO_LLM_EVICTION", "arc")])
///     .toml("eviction = 'fifo'\nstrict = true")
///     .resolve()?;
/// assert_eq!(config.eviction.name(), "arc");
/// assert_eq!(config.source("host.blocks").to_string(), "argument");
/// # Ok::<(), dynamo_llm::block_manager::config::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ConfigLayers {
    files: Vec<Document>,
    environment: Vec<Variable>,
    arguments: Vec<Value>,
}

#[derive(Clone, Debug)]
enum Document {
    Path(PathBuf),
    Text(String),
}

impl ConfigLayers {
    /// Nothing but defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a TOML file, over the files so far. It is read by [`resolve`](Self::resolve).
    #[must_use]
    pub fn file(mut self, path: impl AsRef<Path>) -> Self {
        self.files.push(Document::Path(path.as_ref().to_owned()));
        self
    }

    /// Adds TOML text, as if it were a file.
    #[must_use]
    pub fn toml(mut self, text: &str) -> Self {
        self.files.push(Document::Text(text.to_owned()));
        self
    }

    /// Adds environment variables (`std::env::vars_os()`, say); only names with the prefix
    /// `DYNAMO_LLM_` matter. `DYNAMO_LLM_CONFIG` names a file, which counts as a file and is read
    /// when the program names none itself.
    #[must_use]
    pub fn environment<K: AsRef<OsStr>, V: AsRef<OsStr>>(
        mut self,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let ours = variables.into_iter().filter_map(|(name, value)| {
            let name = name.as_ref().to_string_lossy().into_owned();
            let value = value.as_ref().to_str().map(str::to_owned);
            name.to_ascii_uppercase().starts_with(PREFIX).then_some(Variable { name, value })
        });
        self.environment.extend(ours);
        self
    }

    /// Adds what the program itself states: a tree of the same shape as the file, where `null`
    /// means not stated.
    #[must_use]
    pub fn arguments(mut self, tree: Value) -> Self {
        self.arguments.push(tree);
        self
    }

    /// Lays the layers over each other.
    ///
    /// Values are checked for their type here and for their sense by [`Config::validate`]. When
    /// something is refused here, the error also names what validation would refuse.
    pub fn resolve(mut self) -> Result<Config, ConfigError> {
        let mut reading = Reading::default();
        if let Some(variable) = self.environment.iter().find(|v| v.name == FILE_VARIABLE) {
            match (&variable.value, self.files.is_empty()) {
                (Some(path), true) if !path.is_empty() => {
                    self.files.push(Document::Path(path.into()));
                }
                (Some(path), false) if !path.is_empty() => reading.note(
                    Severity::Warning,
                    FILE_VARIABLE,
                    path,
                    "not read, because the program names a file itself",
                    "unset the variable, or do not name a file",
                ),
                // Empty or not text: reported with the other variables.
                _ => {}
            }
        }
        for document in self.files {
            let (tree, path) = document.read()?;
            reading.tree(&tree, &Source::File(path));
        }
        reading.environment(&self.environment);
        for tree in &self.arguments {
            reading.tree(tree, &Source::Argument);
        }
        reading.finish()
    }
}

impl Document {
    fn read(self) -> Result<(Value, PathBuf), ConfigError> {
        let (text, path) = match self {
            Document::Text(text) => (text, PathBuf::from("(text)")),
            Document::Path(path) => match std::fs::read_to_string(&path) {
                Ok(text) => (text, path),
                Err(source) => return Err(ConfigError::File { path, source }),
            },
        };
        match text.parse::<toml::Table>() {
            Ok(table) => Ok((plain(toml::Value::Table(table)), path)),
            Err(error) => Err(ConfigError::Syntax { path, message: error.to_string() }),
        }
    }
}

/// TOML's tree as the one that all layers share; what only TOML has becomes text.
fn plain(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => number.into(),
        toml::Value::Boolean(flag) => flag.into(),
        toml::Value::Datetime(time) => time.to_string().into(),
        toml::Value::Array(items) => items.into_iter().map(plain).collect(),
        toml::Value::Table(table) => {
            Value::Object(table.into_iter().map(|(key, value)| (key, plain(value))).collect())
        }
    }
}
