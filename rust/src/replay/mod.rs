//! Trace-driven simulation: real request traffic against a cache.
//!
//! A [`Trace`] says which blocks each request of a real service asked for. Replaying it
//! [`index_only`] moves no bytes and gives the hit rate of a policy at a capacity.

mod capacity;
mod error;
mod format;
mod index_only;
mod read;
mod trace;

pub use capacity::{Capacity, ParseCapacityError};
pub use error::{TraceError, TraceProblem};
pub use format::{ParseTraceFormatError, TraceFormat};
pub use index_only::{IndexReplay, Progress, ReplayCancelled, index_only, sweep};
pub use trace::{Request, Trace};
