//! The eviction policies by name.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Which block goes when a tier needs room.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum EvictionKind {
    /// The block whose last use is longest ago.
    #[default]
    Lru,
    /// The block that came first.
    Fifo,
    /// Adaptive replacement: balances blocks used once against blocks used again, by which of the
    /// two it regrets having evicted.
    Arc,
    /// Three queues: a small one that new blocks must survive, a main one, and the names of those
    /// that did not.
    S3fifo,
}

impl EvictionKind {
    /// Every policy, in declaration order.
    pub const ALL: &[EvictionKind] =
        &[EvictionKind::Lru, EvictionKind::Fifo, EvictionKind::Arc, EvictionKind::S3fifo];

    /// The lower-case name used in configuration and reports.
    pub const fn name(self) -> &'static str {
        match self {
            EvictionKind::Lru => "lru",
            EvictionKind::Fifo => "fifo",
            EvictionKind::Arc => "arc",
            EvictionKind::S3fifo => "s3fifo",
        }
    }
}

impl fmt::Display for EvictionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no eviction policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("eviction: {name:?} is not a policy; one of {}", known())]
pub struct ParseEvictionError {
    name: String,
}

fn known() -> String {
    EvictionKind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
}

impl FromStr for EvictionKind {
    type Err = ParseEvictionError;

    /// Upper and lower case alike.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        EvictionKind::ALL
            .iter()
            .copied()
            .find(|kind| kind.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| ParseEvictionError { name: super::finding::clip(name) })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn names_round_trip_in_text_and_serde() {
        for &kind in EvictionKind::ALL {
            assert_eq!(kind.to_string().to_uppercase().parse(), Ok(kind));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
        }
        let message = "mru".parse::<EvictionKind>().unwrap_err().to_string();
        assert!(message.contains("\"mru\"") && message.contains("s3fifo"), "{message}");
    }
}
