//! Every setting there is: one row each, and the only place that knows its name.
//!
//! Files, dictionaries, the environment, the list of effective settings and the reference all
//! read this table, so none of them can know a setting that another lacks.

use serde_json::Value;

use super::{
    Capacity, Config,
    setting::{Setting, read_bytes},
};

/// What the name of every variable of ours starts with.
pub(super) const PREFIX: &str = "DYNAMO_LLM_";
/// The variable that names a configuration file.
pub(super) const FILE_VARIABLE: &str = "DYNAMO_LLM_CONFIG";
/// Settings whose parts are known and not built.
pub(super) const NOT_BUILT: &[&str] = &["remote", "nixl", "runtime.nixl"];

/// One setting.
pub(super) struct Field {
    /// Dotted path.
    pub(super) path: &'static str,
    /// A value that would do, in TOML.
    pub(super) example: &'static str,
    /// What it is, in a sentence.
    pub(super) doc: &'static str,
    /// Another way to state the same thing: one layer may use one of the two.
    pub(super) excludes: Option<&'static str>,
    /// Puts a value into the configuration.
    pub(super) read: fn(&mut Config, &Value) -> Result<(), String>,
    /// The value in the configuration, if it has one.
    pub(super) write: fn(&Config) -> Option<Value>,
}

impl Field {
    /// The name of its environment variable.
    pub(super) fn variable(&self) -> String {
        format!("{PREFIX}{}", self.path.replace('.', "_").to_ascii_uppercase())
    }
}

/// The setting of that path.
pub(super) fn field(path: &str) -> Option<&'static Field> {
    FIELDS.iter().find(|field| field.path == path)
}

/// The tables that group settings.
pub(super) const SECTIONS: &[&str] =
    &["model", "runtime", "device", "host", "disk", "offload", "transfer"];

macro_rules! field {
    ($path:literal, $example:literal, $doc:literal, $($at:ident).+) => {
        Field {
            path: $path,
            example: $example,
            doc: $doc,
            excludes: None,
            read: |config, value| {
                config.$($at).+ = Setting::read(value)?;
                Ok(())
            },
            write: |config| config.$($at).+.write(),
        }
    };
}

/// One of the two spellings of a tier's capacity.
macro_rules! capacity {
    ($tier:ident, $kind:ident, $path:literal, $example:literal, $doc:literal, $excludes:literal,
     $read:path) => {
        Field {
            path: $path,
            example: $example,
            doc: $doc,
            excludes: Some($excludes),
            read: |config, value| {
                config.$tier.capacity = Capacity::$kind($read(value)?);
                Ok(())
            },
            write: |config| match config.$tier.capacity {
                Capacity::$kind(amount) => amount.write(),
                _ => None,
            },
        }
    };
}

/// Every setting, in the order in which it is listed.
pub(super) static FIELDS: &[Field] = &[
    field!("model.num_layers", "32", "Layers that share the block table.", model.num_layers),
    field!("model.outer_dim", "2", "2 where K and V lie apart, 1 where not.", model.outer_dim),
    field!("model.page_size", "16", "Tokens in a block.", model.page_size),
    field!(
        "model.inner_dim",
        "4096",
        "Elements per token, layer and outer index: KV heads x head size of one rank.",
        model.inner_dim
    ),
    field!("model.dtype", "\"bf16\"", "Type of one element.", model.dtype),
    field!("model.name", "\"llama-3\"", "Name of the model.", model.name),
    field!("model.revision", "\"main\"", "Revision or digest of the weights.", model.revision),
    field!("model.adapter", "\"style\"", "Adapter merged into the weights.", model.adapter),
    field!("runtime.worker_id", "0", "Number of this worker.", runtime.worker_id),
    field!("eviction", "\"lru\"", "Policy of every tier that states none.", eviction),
    field!("strict", "true", "Whether warnings are errors.", strict),
    capacity!(
        device,
        Blocks,
        "device.blocks",
        "1024",
        "Blocks of the device tier; 0 switches it off.",
        "device.bytes",
        Setting::read
    ),
    capacity!(
        device,
        Bytes,
        "device.bytes",
        "\"4 GiB\"",
        "Bytes of the device tier, rounded down to whole blocks; 0 switches it off.",
        "device.blocks",
        read_bytes
    ),
    field!(
        "device.layout",
        "\"fully_contiguous\"",
        "How blocks lie in device memory.",
        device.layout
    ),
    field!("device.eviction", "\"lru\"", "Policy of the device tier.", device.eviction),
    field!(
        "device.prefault",
        "false",
        "Whether device memory is committed at start.",
        device.prefault
    ),
    field!(
        "device.huge_pages",
        "true",
        "Whether device memory that is ordinary memory is asked for in huge pages.",
        device.huge_pages
    ),
    capacity!(
        host,
        Blocks,
        "host.blocks",
        "4096",
        "Blocks of the host tier; 0 switches it off.",
        "host.bytes",
        Setting::read
    ),
    capacity!(
        host,
        Bytes,
        "host.bytes",
        "\"64 GiB\"",
        "Bytes of the host tier, rounded down to whole blocks; 0 switches it off.",
        "host.blocks",
        read_bytes
    ),
    field!("host.layout", "\"paged\"", "How blocks lie in host memory.", host.layout),
    field!("host.eviction", "\"s3fifo\"", "Policy of the host tier.", host.eviction),
    field!("host.prefault", "true", "Whether host memory is committed at start.", host.prefault),
    field!(
        "host.huge_pages",
        "true",
        "Whether host memory is asked for in huge pages.",
        host.huge_pages
    ),
    field!(
        "disk.dir",
        "\"/var/cache/dynamo\"",
        "Directory of the disk tier; without one there is none.",
        disk.dir
    ),
    capacity!(
        disk,
        Blocks,
        "disk.blocks",
        "65536",
        "Blocks of the disk tier; 0 switches it off.",
        "disk.bytes",
        Setting::read
    ),
    capacity!(
        disk,
        Bytes,
        "disk.bytes",
        "\"500 GiB\"",
        "The most bytes of everything in the directory; 0 switches the disk tier off.",
        "disk.blocks",
        read_bytes
    ),
    Field {
        path: "disk.write_bytes_per_day",
        example: "\"2 TB\"",
        doc: "Bytes written to the drive in a day; beyond, only blocks offered a second time are.",
        excludes: None,
        read: |config, value| {
            config.disk.write_bytes_per_day = Some(read_bytes(value)?);
            Ok(())
        },
        write: |config| config.disk.write_bytes_per_day.write(),
    },
    field!(
        "disk.drives",
        "[{ dir = \"/mnt/a/dynamo\", bytes = \"500 GiB\" }, \
          { dir = \"/mnt/b/dynamo\", bytes = \"500 GiB\", write_bytes_per_day = \"2 TB\" }]",
        "Several drives instead of one, each with dir, bytes (or blocks) and write_bytes_per_day.",
        disk.drives
    ),
    field!("disk.eviction", "\"arc\"", "Policy of the disk tier.", disk.eviction),
    field!(
        "disk.durability",
        "\"power\"",
        "What stored blocks survive: the death of the process, or the loss of power too.",
        disk.durability
    ),
    field!(
        "disk.direct",
        "false",
        "Whether to go past the page cache, where the file system can.",
        disk.direct
    ),
    field!(
        "disk.reuse",
        "false",
        "Whether to keep what is in the directory; otherwise it starts empty.",
        disk.reuse
    ),
    field!(
        "disk.io_threads",
        "16",
        "Blocks read at once from each drive; half as many are written at once.",
        disk.io_threads
    ),
    field!(
        "offload.policy",
        "\"write_through\"",
        "What is copied to the next lower tier without being asked.",
        offload.policy
    ),
    field!(
        "offload.queue_blocks",
        "16384",
        "Blocks that may wait for a lower tier; further ones are dropped and counted.",
        offload.queue_blocks
    ),
    field!("transfer.threads", "4", "Threads that copy.", transfer.threads),
    field!(
        "transfer.deadline_ms",
        "30000",
        "Milliseconds after which a copy counts as failed.",
        transfer.deadline_ms
    ),
];

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_every_section_is_known() {
        let variables: BTreeSet<String> = FIELDS.iter().map(Field::variable).collect();
        assert_eq!(variables.len(), FIELDS.len());
        assert!(!variables.contains(FILE_VARIABLE));
        for field in FIELDS {
            let section = field.path.split_once('.').map(|(section, _)| section);
            assert!(section.is_none_or(|section| SECTIONS.contains(&section)), "{}", field.path);
            assert_eq!(
                field.excludes.and_then(super::field).map(|f| f.excludes),
                field.excludes.map(|_| Some(field.path))
            );
        }
    }

    #[test]
    fn each_example_is_read_into_its_own_field_and_written_back() {
        for field in FIELDS {
            let document = format!("{} = {}", field.path, field.example);
            let config = Config::from_toml_str(&document).unwrap();
            let written = (field.write)(&config);
            assert!(written.is_some(), "{document}");
            let mut again = Config::default();
            (field.read)(&mut again, &written.unwrap()).unwrap();
            assert_eq!(again, config, "{document}");
        }
    }
}
