//! Element types of cached tensors.
//!
//! Names follow the field's habit (`fp16`, `bf16`, ...). The two FP8 encodings are different
//! types: their bytes mean different numbers, so they must never share a cache.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $bytes:literal;)*) => {
        /// The type of one cache element.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum DType {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)*
        }

        impl DType {
            /// Every element type, in declaration order.
            pub const ALL: &[DType] = &[$(DType::$variant),*];

            /// Bytes of one element.
            pub const fn size_bytes(self) -> usize {
                match self { $(DType::$variant => $bytes,)* }
            }

            /// The lower-case name used in configuration files and fingerprints.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }
        }
    };
}

dtypes! {
    /// IEEE half precision.
    FP16 = "fp16", 2;
    /// Brain float, the upper half of an FP32.
    BF16 = "bf16", 2;
    /// IEEE single precision.
    FP32 = "fp32", 4;
    /// IEEE double precision.
    FP64 = "fp64", 8;
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinities (`float8_e4m3fn`).
    #[allow(non_camel_case_types)]
    FP8_E4M3 = "fp8_e4m3", 1;
    /// 8-bit float, 5 exponent and 2 mantissa bits (`float8_e5m2`).
    #[allow(non_camel_case_types)]
    FP8_E5M2 = "fp8_e5m2", 1;
    /// Signed 8-bit integer.
    INT8 = "int8", 1;
    /// Signed 16-bit integer.
    INT16 = "int16", 2;
    /// Signed 32-bit integer.
    INT32 = "int32", 4;
    /// Signed 64-bit integer.
    INT64 = "int64", 8;
    /// Unsigned 8-bit integer; also the way to carry opaque bytes.
    UINT8 = "uint8", 1;
    /// Unsigned 16-bit integer.
    UINT16 = "uint16", 2;
    /// Unsigned 32-bit integer.
    UINT32 = "uint32", 4;
    /// Unsigned 64-bit integer.
    UINT64 = "uint64", 8;
}

impl DType {
    /// 8-bit float in the encoding that inference engines mean by plain `fp8` (E4M3).
    pub const FP8: DType = DType::FP8_E4M3;
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no element type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("dtype: {name:?} is not known; one of {}", known())]
pub struct ParseDTypeError {
    name: String,
}

fn known() -> String {
    DType::ALL.iter().map(|d| d.name()).collect::<Vec<_>>().join(", ")
}

impl FromStr for DType {
    type Err = ParseDTypeError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let lower = name.to_ascii_lowercase();
        match lower.as_str() {
            "fp8" => Ok(DType::FP8),
            _ => DType::ALL
                .iter()
                .copied()
                .find(|d| d.name() == lower)
                .ok_or(ParseDTypeError { name: name.chars().take(80).collect() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_sizes_are_positive() {
        for &d in DType::ALL {
            assert_eq!(d.name().parse::<DType>(), Ok(d));
            assert_eq!(d.name().to_uppercase().parse::<DType>(), Ok(d));
            assert!(matches!(d.size_bytes(), 1 | 2 | 4 | 8));
        }
    }

    #[test]
    fn unknown_name_lists_the_known_ones() {
        let refused = "auto".parse::<DType>();
        let message = refused.map_or_else(|error| error.to_string(), |dtype| dtype.to_string());
        assert!(message.contains("\"auto\"") && message.contains("bf16"), "{message}");
    }
}
