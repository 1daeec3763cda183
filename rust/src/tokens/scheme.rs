//! The ways to hash, by name.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::TokenError;

/// How block hashes are computed (the module documentation has the definitions).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum HashScheme {
    /// Collision-resistant: nobody can construct two sequences with one hash.
    #[default]
    Blake3,
    /// Several times faster, but collisions can be constructed: for one trust domain.
    Xxh3,
    /// The 64-bit values of KVBM 1.6.1. Such hashes stay within memory tiers.
    Kvbm,
}

impl HashScheme {
    /// Every scheme.
    pub const ALL: [HashScheme; 3] = [HashScheme::Blake3, HashScheme::Xxh3, HashScheme::Kvbm];

    /// The lower-case name used in configuration and fingerprints.
    pub const fn name(self) -> &'static str {
        match self {
            HashScheme::Blake3 => "blake3",
            HashScheme::Xxh3 => "xxh3",
            HashScheme::Kvbm => "kvbm",
        }
    }
}

impl fmt::Display for HashScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for HashScheme {
    type Err = TokenError;

    fn from_str(name: &str) -> Result<Self, TokenError> {
        HashScheme::ALL
            .into_iter()
            .find(|scheme| scheme.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| TokenError::UnknownScheme { name: name.chars().take(80).collect() })
    }
}
