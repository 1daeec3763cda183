//! Why a trace cannot be replayed.

use std::{io, path::PathBuf};

use super::format::TraceFormat;

/// A trace file that cannot be read, and where in it the reason is.
#[derive(Debug, thiserror::Error)]
#[error("trace {}{}: {problem}", .path.display(), line_number(*.line))]
pub struct TraceError {
    /// The file.
    pub path: PathBuf,
    /// The line, counted from 1; `None` when the reason is not in one line.
    pub line: Option<u64>,
    /// The reason.
    pub problem: TraceProblem,
}

fn line_number(line: Option<u64>) -> String {
    line.map_or_else(String::new, |line| format!(", line {line}"))
}

/// The reason in a [`TraceError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceProblem {
    /// The system's answer when opening or reading.
    #[error("cannot be read: {0}")]
    Io(io::Error),
    /// Compressed bytes that do not decompress.
    #[error("is damaged or cut gzip: {0}; fetch it again")]
    Gzip(io::Error),
    /// Request lengths without block identities.
    #[error(
        "has only request lengths and cannot be replayed: which blocks requests share is not in \
         it; use a trace with block ids ({})",
        TraceFormat::known()
    )]
    LengthsOnly,
    /// The first line is of no known format.
    #[error("is in no known format ({}); name one with the format option", TraceFormat::known())]
    UnknownFormat,
    /// A line that is not what the format prescribes.
    #[error("is no request in {format} format: {reason}")]
    Malformed {
        /// The format the line was read as.
        format: TraceFormat,
        /// What is wrong, and at which column.
        reason: String,
    },
    /// A run of ids that passes the largest 64-bit number.
    #[error("a run of {count} block ids from {first} on passes the largest 64-bit id")]
    RunOverflow {
        /// The first id.
        first: u64,
        /// How many.
        count: u64,
    },
    /// A line without end.
    #[error("is longer than {limit} bytes")]
    LineTooLong {
        /// Most bytes of a line.
        limit: u64,
    },
    /// More blocks in a request than any request has.
    #[error("has more than {limit} blocks in one request")]
    RequestTooLong {
        /// Most blocks of a request.
        limit: usize,
    },
    /// More blocks than fit.
    #[error("has more than {limit} blocks in all requests together; split the trace")]
    TraceTooLong {
        /// Most blocks of a trace.
        limit: usize,
    },
}
