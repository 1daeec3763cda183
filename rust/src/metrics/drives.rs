//! The figures of drives.

use serde::Serialize;

/// One drive of the disk tier: what is on it now, and what was done to it since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DriveMetrics {
    /// Its directory.
    pub dir: String,
    /// Whether loads are sent there; where not, its blocks are misses.
    pub loads: bool,
    /// Whether stores are sent there.
    pub stores: bool,
    /// The most blocks that lie there.
    pub capacity: u64,
    /// Bytes that the directory has on the drive, everything included.
    pub used_bytes: u64,
    /// Bytes of the blocks, sums and records that were given to the drive to be written. What the
    /// file system and the drive write beside them is not in it, nor are records that are changed
    /// or erased (256 bytes each).
    pub written_bytes: u64,
    /// Blocks that were loaded and verified.
    pub hits: u64,
    /// What a hit has cost in bytes written; `None` before the first.
    pub written_bytes_per_hit: Option<f64>,
    /// Bytes of the write budget that may be used now, negative where later ones were used in
    /// advance; `None` without a budget.
    pub budget_left_bytes: Option<i64>,
    /// Blocks that the budget has declined.
    pub declined: u64,
}

/// A figure of every drive: name, kind, unit, help text, and what it is where there is one.
type DriveFigure =
    (&'static str, &'static str, &'static str, &'static str, fn(&DriveMetrics) -> Option<f64>);

/// Those that the `OpenMetrics` page has.
pub(super) const FIGURES: &[DriveFigure] = &[
    ("drive_loads_up", "gauge", "", "1 where loads are sent.", |d| Some(f64::from(d.loads))),
    ("drive_stores_up", "gauge", "", "1 where stores are sent.", |d| Some(f64::from(d.stores))),
    ("drive_capacity_blocks", "gauge", "blocks", "The most blocks there.", |d| {
        Some(d.capacity as f64)
    }),
    ("drive_used_bytes", "gauge", "bytes", "Bytes of the directory.", |d| {
        Some(d.used_bytes as f64)
    }),
    ("drive_written_bytes", "counter", "bytes", "Bytes given to the drive.", |d| {
        Some(d.written_bytes as f64)
    }),
    ("drive_hits", "counter", "", "Blocks loaded and verified.", |d| Some(d.hits as f64)),
    ("drive_declined", "counter", "", "Blocks that the write budget declined.", |d| {
        Some(d.declined as f64)
    }),
    ("drive_budget_left_bytes", "gauge", "bytes", "What may be written now.", |d| {
        d.budget_left_bytes.map(|left| left as f64)
    }),
];
