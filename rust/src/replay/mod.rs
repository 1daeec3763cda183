//! Trace-driven simulation: real request traffic against a cache.
//!
//! A [`Trace`] says which blocks each request of a real service asked for. Replaying it
//! [`index_only()`] moves no bytes and gives the hit rate of a policy at a capacity; replaying it
//! [`with_bytes()`] drives a real manager, whose tiers hold, copy and verify real blocks.

mod capacity;
mod error;
mod failure;
mod format;
mod index_only;
mod keys;
mod options;
mod pattern;
mod read;
mod result;
mod shape;
mod trace;
mod with_bytes;

pub use capacity::{Capacity, ParseCapacityError};
pub use error::{TraceError, TraceProblem};
pub use failure::ReplayError;
pub use format::{ParseTraceFormatError, TraceFormat};
pub use index_only::{IndexReplay, Progress, ReplayCancelled, index_only, sweep};
pub use options::{ByteReplayOptions, ByteReplayOptionsBuilder, ReplayEngines};
pub use result::{ByteReplay, Hits, Latencies, Quantiles, Sample};
pub use trace::{Request, Trace};
pub use with_bytes::with_bytes;
