//! What a line of a trace means.
//!
//! Known formats, one JSON object a line:
//! - `mooncake`: `timestamp` in milliseconds and `hash_ids`, the ids of the request's prefix blocks;
//! - `lmcache`: `timestamp` in microseconds and `h`, runs of ids as pairs of first id and count.
//!
//! Other members are ignored. Traces that tell lengths alone, as CSV or JSON, are recognised to be
//! refused with the reason.

use std::{fmt, str::FromStr};

use serde::Deserialize;

use super::error::TraceProblem;
use super::trace::{MAX_REQUEST_BLOCKS, TraceBuilder};

/// The format of a trace file, compression aside.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum TraceFormat {
    /// Traces of Mooncake: a list of block ids a request.
    Mooncake,
    /// Traces of `LMCache` agents, reduced to runs of block ids.
    Lmcache,
}

impl TraceFormat {
    /// Every format, in declaration order.
    pub const ALL: &[TraceFormat] = &[TraceFormat::Mooncake, TraceFormat::Lmcache];

    /// The lower-case name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            TraceFormat::Mooncake => "mooncake",
            TraceFormat::Lmcache => "lmcache",
        }
    }

    pub(super) fn known() -> String {
        Self::ALL.iter().map(|format| format.name()).collect::<Vec<_>>().join(", ")
    }

    /// The format of a trace whose first line is `line`.
    pub(super) fn detect(line: &[u8]) -> Result<Self, TraceProblem> {
        if let Ok(members) = serde_json::from_slice::<Members>(line) {
            return match members {
                Members { hash_ids: Some(_), .. } => Ok(TraceFormat::Mooncake),
                Members { h: Some(_), .. } => Ok(TraceFormat::Lmcache),
                Members { input_length: Some(_), .. } => Err(TraceProblem::LengthsOnly),
                _ => Err(TraceProblem::UnknownFormat),
            };
        }
        let header = String::from_utf8_lossy(line).to_ascii_lowercase();
        let is_lengths = header.split(',').map(str::trim).any(|column| {
            matches!(column, "contexttokens" | "input_length" | "num_prefill_tokens")
        });
        Err(if is_lengths { TraceProblem::LengthsOnly } else { TraceProblem::UnknownFormat })
    }

    /// Adds the request in `line` to `trace`.
    pub(super) fn read(self, line: &[u8], trace: &mut TraceBuilder) -> Result<(), TraceProblem> {
        let malformed = |error: serde_json::Error| TraceProblem::Malformed {
            format: self,
            reason: without_line(&error),
        };
        match self {
            TraceFormat::Mooncake => {
                let request: Mooncake = serde_json::from_slice(line).map_err(malformed)?;
                let timestamp_us = (request.timestamp * 1000.0).round() as i64;
                trace.push(timestamp_us, request.hash_ids.into_iter())
            }
            TraceFormat::Lmcache => {
                let request: Lmcache = serde_json::from_slice(line).map_err(malformed)?;
                let mut total = 0u64;
                for &(first, count) in &request.h {
                    if count > 0 && first.checked_add(count - 1).is_none() {
                        return Err(TraceProblem::RunOverflow { first, count });
                    }
                    // Before the first block is stored: a line of few bytes can name 2^64.
                    total = total.saturating_add(count);
                    if total > MAX_REQUEST_BLOCKS as u64 {
                        return Err(TraceProblem::RequestTooLong { limit: MAX_REQUEST_BLOCKS });
                    }
                }
                let blocks = request
                    .h
                    .iter()
                    .flat_map(|&(first, count)| (0..count).map(move |offset| first + offset));
                trace.push(request.timestamp.round() as i64, blocks)
            }
        }
    }
}

impl fmt::Display for TraceFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no trace format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("format: {name:?} is not a trace format; one of {}", TraceFormat::known())]
pub struct ParseTraceFormatError {
    name: String,
}

impl FromStr for TraceFormat {
    type Err = ParseTraceFormatError;

    /// Upper and lower case alike.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        TraceFormat::ALL
            .iter()
            .copied()
            .find(|format| format.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| ParseTraceFormatError { name: name.to_owned() })
    }
}

/// Timestamps as floating point: some traces have fractions, and whole numbers are exact to 2^53.
#[derive(Deserialize)]
struct Mooncake {
    timestamp: f64,
    hash_ids: Vec<u64>,
}

#[derive(Deserialize)]
struct Lmcache {
    timestamp: f64,
    h: Vec<(u64, u64)>,
}

/// The members that tell formats apart, whatever they hold.
#[derive(Deserialize)]
struct Members {
    hash_ids: Option<serde::de::IgnoredAny>,
    h: Option<serde::de::IgnoredAny>,
    input_length: Option<serde::de::IgnoredAny>,
}

/// The parser sees one line at a time, so its own count is always 1 and would mislead.
fn without_line(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
}
