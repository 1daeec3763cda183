//! One layer after another read into a configuration, and everything that is wrong with them.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{
    Config, ConfigError, Finding, Severity, Source,
    finding::clip,
    nearest::nearest,
    schema::{FIELDS, FILE_VARIABLE, Field, NOT_BUILT, PREFIX, SECTIONS, field},
};

/// A variable of the environment.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub(super) name: String,
    /// `None` where it is not UTF-8.
    pub(super) value: Option<String>,
}

/// The configuration so far and what there is to say about it.
#[derive(Default)]
pub(super) struct Reading {
    config: Config,
    findings: Vec<Finding>,
}

impl Reading {
    pub(super) fn note(
        &mut self,
        severity: Severity,
        field: &str,
        value: &str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.findings.push(Finding::new(severity, clip(field), value, message, remedy));
    }

    /// Reads a tree of settings: a file's or a dictionary's.
    pub(super) fn tree(&mut self, tree: &Value, source: &Source) {
        match tree {
            Value::Object(table) => self.table("", table, source, &mut BTreeSet::new()),
            other => self.note(
                Severity::Error,
                "configuration",
                &other.to_string(),
                "expected a table of settings",
                "write for example {\"host\": {\"blocks\": 4096}}",
            ),
        }
    }

    /// Reads one table; goes only where the schema goes, so its depth is the schema's.
    fn table(
        &mut self,
        section: &str,
        table: &Map<String, Value>,
        source: &Source,
        given: &mut BTreeSet<&'static str>,
    ) {
        for (key, value) in table {
            let path = if section.is_empty() { key.clone() } else { format!("{section}.{key}") };
            if let Some(field) = field(&path) {
                if !value.is_null() {
                    self.set(field, value, source.clone(), given);
                }
            } else if let Some(part) = not_built(&path, '.') {
                if !value.is_null() {
                    self.refuse_part(&path, part, value);
                }
            } else if SECTIONS.contains(&path.as_str()) {
                match (value, list_of(&path)) {
                    (Value::Object(table), _) => self.table(&path, table, source, given),
                    (Value::Null, _) => {}
                    (Value::Array(_), Some(field)) => {
                        self.set(field, value, source.clone(), given);
                    }
                    (other, _) => {
                        let keys: Vec<&str> = FIELDS
                            .iter()
                            .filter_map(|f| f.path.strip_prefix(&path)?.strip_prefix('.'))
                            .collect();
                        self.note(
                            Severity::Error,
                            &path,
                            &other.to_string(),
                            "expected a table",
                            format!("give it some of the keys {}", keys.join(", ")),
                        );
                    }
                }
            } else {
                self.unknown(&path, value);
            }
        }
    }

    fn unknown(&mut self, path: &str, value: &Value) {
        let names = FIELDS.iter().map(|f| f.path).chain(SECTIONS.iter().copied());
        let near = nearest(path, names).unwrap_or_default();
        self.note(
            Severity::Error,
            path,
            &value.to_string(),
            "no setting has this name",
            format!("the nearest is {near:?}; correct or remove it"),
        );
    }

    fn refuse_part(&mut self, path: &str, part: &str, value: &Value) {
        self.note(
            Severity::Error,
            path,
            &value.to_string(),
            format!("{part} is not part of this version"),
            "remove it",
        );
    }

    /// Reads variables whose names have our prefix, in any case.
    pub(super) fn environment(&mut self, variables: &[Variable]) {
        let names: Vec<(String, &Field)> = FIELDS.iter().map(|f| (f.variable(), f)).collect();
        let mut given = BTreeSet::new();
        for Variable { name, value } in variables {
            let known = names.iter().find(|(known, _)| known == name).map(|&(_, field)| field);
            let part = name.strip_prefix(PREFIX).and_then(|rest| not_built(rest, '_'));
            if known.is_none() && part.is_none() && name != FILE_VARIABLE {
                let near = names.iter().map(|(name, _)| name.as_str()).chain([FILE_VARIABLE]);
                let near = nearest(name, near).unwrap_or_default();
                self.note(
                    Severity::Warning,
                    name,
                    value.as_deref().unwrap_or_default(),
                    "no variable has this name, so it has no effect",
                    format!("the nearest is {near}; correct or unset it"),
                );
                continue;
            }
            let Some(value) = value else {
                self.note(Severity::Error, name, "", "its value is not UTF-8", "correct it");
                continue;
            };
            if value.trim().is_empty() {
                self.note(
                    Severity::Warning,
                    name,
                    "",
                    "it is empty, which counts as not set",
                    "unset it, or give it a value",
                );
                continue;
            }
            let value = Value::from(value.as_str());
            if let Some(part) = part {
                self.refuse_part(name, part, &value);
            } else if let Some(field) = known {
                self.set(field, &value, Source::Environment(name.clone()), &mut given);
            }
        }
    }

    fn set(
        &mut self,
        field: &'static Field,
        value: &Value,
        source: Source,
        given: &mut BTreeSet<&'static str>,
    ) {
        let mut fault = None;
        if !given.insert(field.path) {
            fault = Some(("it is given twice".to_owned(), "state it once".to_owned()));
        } else if let Some(other) = field.excludes.filter(|other| given.contains(other)) {
            fault = Some((format!("{other} is given too"), "state one of the two".to_owned()));
        } else if let Err(message) = (field.read)(&mut self.config, value) {
            fault = Some((message, format!("write for example {}", example(field, &source))));
        }
        match fault {
            Some((message, remedy)) => {
                let name = match &source {
                    Source::Environment(name) => name.as_str(),
                    _ => field.path,
                };
                self.note(Severity::Error, name, &value.to_string(), message, remedy);
            }
            None => self.config.remember(field, source),
        }
    }

    /// The configuration, unless something was refused.
    pub(super) fn finish(mut self) -> Result<Config, ConfigError> {
        self.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        let refused = |finding: &Finding| finding.severity == Severity::Error;
        if !self.findings.iter().any(refused) {
            self.config.loaded(self.findings);
            return Ok(self.config);
        }
        // What was not read left its default behind, and defaults make sense.
        let senseless = self.config.check();
        let findings = self.findings.into_iter().chain(senseless).filter(refused).collect();
        Err(ConfigError::Invalid { findings })
    }
}

/// The setting as it would be written right at its source.
fn example(field: &Field, source: &Source) -> String {
    match source {
        Source::Environment(name) => format!("{name}={}", field.example.trim_matches('"')),
        _ => format!("{} = {}", field.path, field.example),
    }
}

/// What a list in the place of a section stands for: `disk = [...]` is `disk.drives`.
fn list_of(section: &str) -> Option<&'static Field> {
    field("disk.drives").filter(|_| section == "disk")
}

/// The part that a name belongs to, where that part is not built.
fn not_built(name: &str, separator: char) -> Option<&'static str> {
    NOT_BUILT.iter().copied().find(|part| {
        let part = part.replace('.', &separator.to_string());
        name.get(..part.len()).is_some_and(|start| start.eq_ignore_ascii_case(&part))
            && name[part.len()..].chars().next().is_none_or(|c| c == separator)
    })
}
