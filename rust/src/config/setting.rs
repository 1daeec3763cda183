//! Values of settings, from and to the tree that files, dictionaries and the environment share.
//!
//! Every value may also be given as text, since the environment knows nothing else.

use std::str::FromStr;

use serde_json::Value;

use super::{DiskDurability, EvictionKind, LayoutKind, OffloadPolicy, size::parse_size};
use crate::dtype::DType;

/// A type that a setting can have.
pub(super) trait Setting: Sized {
    /// Reads the value; the error says what was expected.
    fn read(value: &Value) -> Result<Self, String>;

    /// The value as it would be written; `None` when it is not set.
    fn write(&self) -> Option<Value>;
}

impl Setting for u64 {
    fn read(value: &Value) -> Result<Self, String> {
        let number = match value {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => text.trim().replace('_', "").parse().ok(),
            _ => None,
        };
        number.ok_or_else(|| "expected a whole number, 0 or more".to_owned())
    }

    fn write(&self) -> Option<Value> {
        // TOML's integers are signed: what they cannot hold is written as text.
        Some(match i64::try_from(*self) {
            Ok(small) => small.into(),
            Err(_) => self.to_string().into(),
        })
    }
}

impl Setting for usize {
    fn read(value: &Value) -> Result<Self, String> {
        let wide = u64::read(value)?;
        wide.try_into().map_err(|_| "too large for this machine".to_owned())
    }

    fn write(&self) -> Option<Value> {
        (*self as u64).write()
    }
}

impl Setting for bool {
    fn read(value: &Value) -> Result<Self, String> {
        let flag = match value {
            Value::Bool(flag) => Some(*flag),
            Value::String(text) => match text.trim().to_ascii_lowercase().as_str() {
                "true" | "1" => Some(true),
                "false" | "0" => Some(false),
                _ => None,
            },
            _ => None,
        };
        flag.ok_or_else(|| "expected true or false".to_owned())
    }

    fn write(&self) -> Option<Value> {
        Some((*self).into())
    }
}

impl Setting for String {
    fn read(value: &Value) -> Result<Self, String> {
        value.as_str().map(str::to_owned).ok_or_else(|| "expected text".to_owned())
    }

    fn write(&self) -> Option<Value> {
        Some(self.as_str().into())
    }
}

/// Enums by name.
macro_rules! by_name {
    ($($kind:ty),*) => {$(
        impl Setting for $kind {
            fn read(value: &Value) -> Result<Self, String> {
                let name = value.as_str().ok_or("expected a name")?;
                Self::from_str(name.trim()).map_err(|error| error.to_string())
            }

            fn write(&self) -> Option<Value> {
                Some(self.name().into())
            }
        }
    )*};
}

by_name!(DType, DiskDurability, EvictionKind, LayoutKind, OffloadPolicy);

impl<T: Setting> Setting for Option<T> {
    fn read(value: &Value) -> Result<Self, String> {
        T::read(value).map(Some)
    }

    fn write(&self) -> Option<Value> {
        self.as_ref().and_then(Setting::write)
    }
}

/// A byte count: a whole number, or text with a unit.
pub(super) fn read_bytes(value: &Value) -> Result<u64, String> {
    match value {
        Value::String(text) => parse_size(text).map_err(|error| error.to_string()),
        _ => u64::read(value).map_err(|_| "expected bytes: a number or a size".to_owned()),
    }
}
