//! What reading and validating a configuration has to say.

use std::{fmt, path::PathBuf};

use serde::Serialize;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something was decided that its reader may want to know.
    Info,
    /// It works, and probably not as meant. An error under `strict`.
    Warning,
    /// Refused.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

/// One thing about one setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// The setting: a dotted path, or the name of an environment variable.
    pub field: String,
    /// The value it has; empty when it has none.
    pub value: String,
    /// What is the matter.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
}

impl Finding {
    /// A finding; a long value is cut.
    pub(crate) fn new(
        severity: Severity,
        field: impl Into<String>,
        value: impl fmt::Display,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            field: field.into(),
            value: clip(&value.to_string()),
            message: message.into(),
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.field)?;
        if !self.value.is_empty() {
            write!(f, " = {}", self.value)?;
        }
        write!(f, ": {}; {}", self.message, self.remedy)
    }
}

/// Input as it may stand in a message: short, whatever was sent.
pub(super) fn clip(text: &str) -> String {
    const LONGEST: usize = 80;
    let mut clipped: String = text.chars().take(LONGEST).collect();
    if clipped.len() < text.len() {
        clipped.push('…');
    }
    clipped
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(
        "configuration file {}: cannot be read ({source}); correct the path or give no file",
        path.display()
    )]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("configuration file {}: not TOML: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and what.
        message: String,
    },
    /// Settings were refused: all of them at once.
    #[error("configuration refused: {}", list(findings))]
    Invalid {
        /// The refused settings, each of severity [`Error`](Severity::Error).
        findings: Vec<Finding>,
    },
}

fn list(findings: &[Finding]) -> String {
    if let [only] = findings {
        return only.to_string();
    }
    let lines: Vec<String> = findings.iter().map(|finding| format!("\n  - {finding}")).collect();
    format!("{} problems{}", findings.len(), lines.concat())
}
