//! Where the bytes of a block lie: arithmetic from (block, layer, outer) to byte spans.
//!
//! A block is `num_layers x outer_dim` *regions*, each `page_size x inner_dim` elements. Copiers,
//! seals and disks agree on one **canonical order** of a block's bytes: layer by layer, outer by
//! outer (K before V), and inside a region in the order in which the region lies in memory. Two
//! layouts of the same logical shape are copied into each other by walking both in that order
//! ([`pair_runs`]); what differs is only where each byte is.
//!
//! Every layout, own or foreign, is the same three things: where each region of block 0 starts,
//! the distance from a block to the next, and how the bytes of one region are strewn. (A custom
//! strategy may give each block starts of its own instead.) So one iterator, [`Spans`], serves
//! them all, allocates nothing, and yields maximal runs.
//!
//! # Invariants
//!
//! - Every span of a built layout lies inside its storage: checked once, when it is built, with
//!   overflow checks; no user code runs later. A copier may rely on it.
//! - No byte belongs to two blocks or to two regions.
//! - Foreign tensors are read as their owner states them. Where two readings fit, building fails
//!   ([`LayoutError::Ambiguous`]); a shape alone never decides.
//!
//! # What it is not
//!
//! It knows neither bytes nor devices nor keys: storages are numbers `0..storage_sizes().len()`,
//! and whoever owns the memory resolves them.
//!
//! # Costs
//!
//! Building takes microseconds (a custom strategy without a block stride: one call per region).
//! Walking a block costs a few nanoseconds per run it yields.

mod block;
mod config;
mod error;
mod external;
mod kind;
mod map;
mod overlap;
mod pairs;
mod reading;
mod spans;
mod strategy;

pub use block::BlockLayout;
pub use config::{
    DEFAULT_INNER_DIM, DEFAULT_NUM_LAYERS, DEFAULT_OUTER_DIM, DEFAULT_PAGE_SIZE, LayoutConfig,
    LayoutConfigBuilder, MAX_INNER_DIM, MAX_NUM_LAYERS, MAX_OUTER_DIM, MAX_PAGE_SIZE,
};
pub use error::LayoutError;
pub use external::{ExternalLayout, ExternalTensor};
pub use kind::{LayoutType, PAGED_ALIGNMENT};
pub use pairs::pair_runs;
pub use reading::Axis;
pub use spans::{Span, Spans};
pub use strategy::{LayoutStrategy, MAX_PLACED_REGIONS, Place};
