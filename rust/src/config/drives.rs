//! Several drives, each with a directory of its own.

use serde_json::{Map, Value};

use super::{
    Capacity,
    nearest::nearest,
    setting::{Setting, read_bytes},
};

/// One of several drives of the disk tier.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DriveConfig {
    /// The directory; made where it is not there. It belongs to one manager at a time.
    pub dir: String,
    /// How much it holds. Bytes limit everything that the directory has on the drive.
    pub capacity: Capacity,
    /// Bytes that the drive may be made to write in a day; no limit when not stated.
    pub write_bytes_per_day: Option<u64>,
}

impl DriveConfig {
    /// A drive without a limit on what is written.
    pub fn new(dir: impl Into<String>, capacity: Capacity) -> Self {
        Self { dir: dir.into(), capacity, write_bytes_per_day: None }
    }
}

const KEYS: [&str; 4] = ["dir", "bytes", "blocks", "write_bytes_per_day"];

impl Setting for Vec<DriveConfig> {
    fn read(value: &Value) -> Result<Self, String> {
        let list = match value {
            Value::String(text) => parsed(text)?,
            other => other.clone(),
        };
        let Value::Array(drives) = list else { return Err("expected a list of drives".to_owned()) };
        let read = |(at, drive): (usize, &Value)| {
            read_drive(drive).map_err(|error| format!("drive {}: {error}", at + 1))
        };
        drives.iter().enumerate().map(read).collect()
    }

    fn write(&self) -> Option<Value> {
        (!self.is_empty()).then(|| self.iter().map(write_drive).collect())
    }
}

/// A list as it would be written in a file, which is how a variable holds one.
fn parsed(text: &str) -> Result<Value, String> {
    let mut table: Map<String, Value> = toml::from_str(&format!("drives = {text}"))
        .map_err(|error| format!("expected a list of drives as in a file ({})", error.message()))?;
    Ok(table.remove("drives").unwrap_or_default())
}

fn read_drive(drive: &Value) -> Result<DriveConfig, String> {
    let Value::Object(drive) = drive else {
        return Err("expected a table with dir and bytes".to_owned());
    };
    if let Some(unknown) = drive.keys().find(|key| !KEYS.contains(&key.as_str())) {
        let near = nearest(unknown, KEYS).unwrap_or_default();
        return Err(format!("no key {unknown:?}; the nearest is {near:?}"));
    }
    let stated = |key: &str| drive.get(key).filter(|value| !value.is_null());
    let of = |key: &'static str| move |error: String| format!("{key}: {error}");
    let dir = stated("dir").ok_or("dir: not stated")?;
    let capacity = match (stated("bytes"), stated("blocks")) {
        (Some(_), Some(_)) => return Err("bytes and blocks exclude each other".to_owned()),
        (Some(bytes), None) => Capacity::Bytes(read_bytes(bytes).map_err(of("bytes"))?),
        (None, Some(blocks)) => Capacity::Blocks(Setting::read(blocks).map_err(of("blocks"))?),
        (None, None) => return Err("bytes: not stated".to_owned()),
    };
    let budget = stated("write_bytes_per_day").map(read_bytes).transpose();
    Ok(DriveConfig {
        dir: Setting::read(dir).map_err(of("dir"))?,
        capacity,
        write_bytes_per_day: budget.map_err(of("write_bytes_per_day"))?,
    })
}

fn write_drive(drive: &DriveConfig) -> Value {
    let mut table = Map::new();
    table.insert("dir".to_owned(), drive.dir.as_str().into());
    let (key, capacity) = match drive.capacity {
        Capacity::Blocks(blocks) => ("blocks", blocks.write()),
        Capacity::Bytes(bytes) => ("bytes", bytes.write()),
        Capacity::Default => ("bytes", None),
    };
    let budget = drive.write_bytes_per_day.and_then(|bytes| bytes.write());
    for (key, value) in [(key, capacity), ("write_bytes_per_day", budget)] {
        table.extend(value.map(|value| (key.to_owned(), value)));
    }
    table.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_is_read_from_tables_and_from_text_and_what_is_wrong_is_named() {
        let list = json!([
            {"dir": "/a", "bytes": "1 GiB", "write_bytes_per_day": 5},
            {"dir": "/b", "blocks": 7, "bytes": null},
        ]);
        let read = Vec::<DriveConfig>::read(&list);
        let text = "[{ dir = '/a', bytes = '1 GiB', write_bytes_per_day = 5 }, \
                    { dir = '/b', blocks = 7 }]";
        assert_eq!(Vec::<DriveConfig>::read(&text.into()), read);
        assert_eq!(read.as_ref().map(Vec::len), Ok(2));
        let written = read.as_ref().map(Setting::write);
        assert!(written.is_ok_and(|w| w.is_some_and(|w| Vec::<DriveConfig>::read(&w) == read)));

        for (drive, named) in [
            (json!({"dir": "/a"}), "drive 1: bytes: not stated"),
            (json!({"bytes": 1}), "drive 1: dir: not stated"),
            (json!({"dir": "/a", "byts": 1}), "the nearest is \"bytes\""),
            (json!({"dir": "/a", "bytes": 1, "blocks": 1}), "exclude each other"),
            (json!({"dir": "/a", "bytes": "1 parsec"}), "drive 1: bytes: "),
            (json!("/a"), "expected a table"),
        ] {
            let error = Vec::<DriveConfig>::read(&json!([drive])).err().unwrap_or_default();
            assert!(error.contains(named), "{drive}: {error}");
        }
        assert!(Vec::<DriveConfig>::read(&"nonsense".into()).is_err());
    }
}
