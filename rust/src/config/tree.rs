//! The whole configuration, and where each setting came from.

use std::{collections::BTreeMap, ffi::OsStr, path::Path};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::{
    ConfigError, ConfigLayers, DiskConfig, Effective, EvictionKind, Finding, ModelConfig, Nixl,
    OffloadConfig, RuntimeConfig, Source, Tier, TierConfig, TransferConfig,
    schema::{FIELDS, Field, field},
};

/// Everything that can be set. Plain data: no live object, nothing opened or allocated.
///
/// Read it from one place with the functions below, from several with [`ConfigLayers`], or fill
/// the fields; then [`validate`](Self::validate). Two are equal when their settings are, wherever
/// those came from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Shape and identity of the model.
    pub model: ModelConfig,
    /// Identity and transports of the worker.
    pub runtime: RuntimeConfig,
    /// Policy of every tier that states none.
    pub eviction: EvictionKind,
    /// Whether warnings are errors.
    pub strict: bool,
    /// The device tier.
    pub device: TierConfig,
    /// The host tier.
    pub host: TierConfig,
    /// The disk tier.
    pub disk: DiskConfig,
    /// Stores to lower tiers.
    pub offload: OffloadConfig,
    /// The copy engine.
    pub transfer: TransferConfig,
    /// What the layers stated, and who did.
    stated: BTreeMap<&'static str, (Option<Value>, Source)>,
    /// What was noticed while the layers were read; `None` when none were.
    noticed: Option<Vec<Finding>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            model: ModelConfig::default(),
            runtime: RuntimeConfig::default(),
            eviction: EvictionKind::default(),
            strict: false,
            device: TierConfig::of(Tier::Device),
            host: TierConfig::of(Tier::Host),
            disk: DiskConfig::default(),
            offload: OffloadConfig::default(),
            transfer: TransferConfig::default(),
            stated: BTreeMap::new(),
            noticed: None,
        }
    }
}

impl Config {
    /// Reads TOML text.
    pub fn from_toml_str(text: &str) -> Result<Self, ConfigError> {
        ConfigLayers::new().toml(text).resolve()
    }

    /// Reads a TOML file; a missing one is an error.
    pub fn from_toml_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        ConfigLayers::new().file(path).resolve()
    }

    /// Reads a tree of the same shape as the file, such as a dictionary; `null` means not stated.
    pub fn from_value(tree: Value) -> Result<Self, ConfigError> {
        ConfigLayers::new().arguments(tree).resolve()
    }

    /// Reads environment variables (`std::env::vars_os()`, say) and the file that
    /// `DYNAMO_LLM_CONFIG` names.
    pub fn from_env<K: AsRef<OsStr>, V: AsRef<OsStr>>(
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, ConfigError> {
        ConfigLayers::new().environment(variables).resolve()
    }

    /// The settings in force that have a value, with their sources. A field that was changed after
    /// reading counts as an argument.
    pub fn effective(&self) -> Vec<Effective> {
        let default = Config::default();
        let of = |field: &'static Field| {
            let value = (field.write)(self)?;
            let source = self.source_of(field, &default);
            Some(Effective { field: field.path, value, source })
        };
        FIELDS.iter().filter_map(of).collect()
    }

    /// Who stated the setting of that path; an unknown path counts as default.
    pub fn source(&self, path: &str) -> Source {
        field(path).map_or(Source::Default, |field| self.source_of(field, &Config::default()))
    }

    fn source_of(&self, field: &Field, default: &Config) -> Source {
        let value = (field.write)(self);
        match self.stated.get(field.path) {
            Some((stated, source)) if *stated == value => source.clone(),
            None if (field.write)(default) == value => Source::Default,
            _ => Source::Argument,
        }
    }

    /// The settings of a tier in memory; `None` for another.
    pub fn tier(&self, tier: Tier) -> Option<&TierConfig> {
        match tier {
            Tier::Device => Some(&self.device),
            Tier::Host => Some(&self.host),
            Tier::Disk | Tier::Remote => None,
        }
    }

    /// The blocks that `tier` was told to hold: 0 when it is off, `None` when nothing was stated.
    pub fn blocks(&self, tier: Tier) -> Option<usize> {
        let Some(config) = self.tier(tier) else { return Some(0) };
        let slot_bytes = self.model.block_bytes().and_then(|bytes| config.layout.slot_bytes(bytes));
        match slot_bytes {
            Some(slot_bytes) => config.capacity.blocks(slot_bytes),
            None => config.capacity.is_off().then_some(0),
        }
    }

    /// The policy of `tier`: its own, else the common one.
    pub fn eviction_of(&self, tier: Tier) -> EvictionKind {
        let own = match tier {
            Tier::Disk => self.disk.eviction,
            tier => self.tier(tier).and_then(|config| config.eviction),
        };
        own.unwrap_or(self.eviction)
    }

    /// The settings as TOML, readable by [`from_toml_str`](Self::from_toml_str).
    pub fn to_toml(&self) -> String {
        // Every value is text, a flag, an integer within TOML's range, or a list of tables of those,
        // so this cannot fail.
        toml::Table::try_from(self).map_or_else(|_| String::new(), |table| table.to_string())
    }

    /// Notes that `source` stated `field`.
    pub(super) fn remember(&mut self, field: &'static Field, source: Source) {
        if let Some(other) = field.excludes {
            self.stated.remove(other);
        }
        let value = (field.write)(self);
        self.stated.insert(field.path, (value, source));
    }

    /// Notes that layers were read, and what was noticed.
    pub(super) fn loaded(&mut self, noticed: Vec<Finding>) {
        self.noticed = Some(noticed);
    }

    /// What was noticed when layers were read; `None` when none were.
    pub(super) fn noticed(&self) -> Option<&[Finding]> {
        self.noticed.as_deref()
    }
}

impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        self.runtime.nixl == other.runtime.nixl
            && FIELDS.iter().all(|field| (field.write)(self) == (field.write)(other))
    }
}

impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tree = Map::new();
        for field in FIELDS {
            let Some(value) = (field.write)(self) else { continue };
            match field.path.split_once('.') {
                None => {
                    tree.insert(field.path.to_owned(), value);
                }
                Some((section, key)) => {
                    let section = tree.entry(section).or_insert_with(|| Map::new().into());
                    if let Value::Object(section) = section {
                        section.insert(key.to_owned(), value);
                    }
                }
            }
        }
        if self.runtime.nixl == Nixl::Enabled
            && let Some(Value::Object(runtime)) = tree.get_mut("runtime")
        {
            runtime.insert("nixl".to_owned(), "enabled".into());
        }
        tree.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let tree = Value::deserialize(deserializer)?;
        Config::from_value(tree).map_err(serde::de::Error::custom)
    }
}

/// One setting, for the reference and for help texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FieldInfo {
    /// Dotted path, as in a file.
    pub path: &'static str,
    /// Environment variable.
    pub variable: String,
    /// What it is, in a sentence.
    pub doc: &'static str,
    /// A value that would do, in TOML.
    pub example: &'static str,
}

impl Config {
    /// Every setting there is.
    pub fn fields() -> impl Iterator<Item = FieldInfo> {
        FIELDS.iter().map(|field| FieldInfo {
            path: field.path,
            variable: field.variable(),
            doc: field.doc,
            example: field.example,
        })
    }
}
