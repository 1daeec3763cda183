//! Figures as plain data: what a manager counted, at one instant.
//!
//! Nothing here is global and nothing registers itself: parts count on their own (pools under
//! their lock, latencies in a [`LatencyHistogram`]), and the manager puts a
//! [`BlockManagerMetrics`] together on request. It prints as a table, serialises as JSON and
//! renders as `OpenMetrics` text.

mod drives;
mod histogram;
mod openmetrics;
mod snapshot;
mod table;

pub use drives::DriveMetrics;
pub use histogram::{LatencyHistogram, LatencySummary};
pub use snapshot::{BlockManagerMetrics, Edge, EdgeMetrics, EventMetrics, PoolMetrics};
