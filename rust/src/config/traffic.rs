//! Movement between tiers: what goes down by itself, and how copies run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::named::named_enum;

named_enum! {
    /// What is copied to the next lower tier without being asked.
    OffloadPolicy, ParseOffloadPolicyError, "offload policy":
    /// Every block, as soon as it is registered.
    WriteThrough = "write_through",
    /// Nothing; the application calls `offload`.
    Manual = "manual",
}

/// Stores to lower tiers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct OffloadConfig {
    /// What goes down by itself.
    pub policy: OffloadPolicy,
    /// Blocks that may wait per edge; further ones are dropped and counted. The default of 16384
    /// takes two prompts of 128 k tokens at 16 tokens a block; a waiting block costs some dozens
    /// of bytes and holds no slot.
    pub queue_blocks: usize,
}

impl Default for OffloadConfig {
    fn default() -> Self {
        Self { policy: OffloadPolicy::WriteThrough, queue_blocks: 16_384 }
    }
}

/// The copy engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TransferConfig {
    /// Threads that copy; when not stated, see [`threads_or_default`](Self::threads_or_default).
    pub threads: Option<usize>,
    /// Milliseconds after which a copy counts as failed and its caller moves on. The default of
    /// 30 000 is far above any copy in memory: it ends hangs, it does not shape traffic.
    pub deadline_ms: u64,
}

impl TransferConfig {
    /// Most threads taken without being asked: a few cores saturate a memory bus, and the rest
    /// belongs to the engine.
    const MOST_BY_DEFAULT: usize = 8;

    /// The stated number, else one per processor that this process may use, at most eight.
    pub fn threads_or_default(&self) -> usize {
        self.threads.unwrap_or_else(|| {
            std::thread::available_parallelism().map_or(1, |n| n.get().min(Self::MOST_BY_DEFAULT))
        })
    }

    /// The deadline as a duration.
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }
}

impl Default for TransferConfig {
    fn default() -> Self {
        Self { threads: None, deadline_ms: 30_000 }
    }
}
