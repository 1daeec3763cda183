//! The block manager: tiers, edges and the verbs over all of them.
//!
//! [`KvBlockManager`] joins what the lower floors know apart: pools (slots), memories (bytes),
//! edges (copies). [`BlockPool`] is one tier to its users; [`MutableBlock`] and [`ImmutableBlock`]
//! are single blocks with their bytes.
//!
//! For the embedder: nothing here starts or needs a runtime. The async verbs are the sync ones
//! behind futures that any executor can poll; `_blocking` works inside async code too, where it
//! blocks the thread it is called on and nothing else. Threads start with the first copy: some that
//! copy down, as many that copy up, one for deadlines. Dropping a manager, in async code or not,
//! neither blocks nor panics: who still waits for a copy is told that it ended, and memory is
//! unmapped when the last block that shows it is gone and the last copy has ended.

mod block_pool;
mod blocks;
mod build;
mod config;
mod disk_tier;
mod drives;
mod edges;
mod error;
mod given_layout;
mod kv;
mod shutdown;
mod sizing;
mod weights;

pub use block_pool::BlockPool;
pub use blocks::{ImmutableBlock, MutableBlock, WeakBlock};
pub use config::{
    KvBlockManagerConfig, KvBlockManagerConfigBuilder, KvManagerLayoutConfig,
    KvManagerLayoutConfigBuilder, PolicyFactory,
};
pub use error::{BlockError, BlockPoolError, ManagerError, RegisterError};
pub use kv::{KvBlockManager, OnboardedBlocks, ResetReport, START_TARGET};
pub use shutdown::ShutdownReport;
pub use weights::WeightsReport;
