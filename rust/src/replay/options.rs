//! What a replay with bytes is asked for, and the manager that it makes.

use std::{num::NonZeroU64, path::PathBuf};

use super::{Capacity, ReplayError, Trace, shape};
use crate::{
    config::{self, Config, EvictionKind, OffloadPolicy},
    manager::{KvBlockManagerConfig, KvManagerLayoutConfig},
    sync::Arc,
    transfer::TransferEngine,
};

/// A day: copies end when they end, so that the same trace gives the same figures on a slow
/// machine as on a fast one.
const DEADLINE_MS: u64 = 86_400_000;

/// A replay with bytes.
#[derive(Clone, bon::Builder)]
#[non_exhaustive]
pub struct ByteReplayOptions {
    /// Eviction policy of every tier.
    #[builder(default)]
    pub policy: EvictionKind,
    /// Size of the device tier; 5 % of the trace's unique blocks when not stated.
    #[builder(default = percent(5))]
    pub device_blocks: Capacity,
    /// Size of the host tier, 0 for none; 20 % when not stated.
    #[builder(default = percent(20))]
    pub host_blocks: Capacity,
    /// Directory of the disk tier; none when not stated. What is in it already counts.
    pub disk: Option<PathBuf>,
    /// Size of the disk tier; all of the trace's unique blocks when not stated.
    pub disk_blocks: Option<Capacity>,
    /// Requests after which the manager is shut down and made anew, again and again.
    pub restart_every: Option<NonZeroU64>,
    /// Bytes of a block; 65536 when not stated. One of the sizes that layers x tokens x elements
    /// can have: any up to 32768, and above that those without a large prime factor.
    #[builder(default = 65_536)]
    pub bytes_per_block: u64,
    /// Whether every byte that is handed out is compared with what it should be.
    #[builder(default)]
    pub verify: bool,
    /// Who copies up and down, instead of the manager's own engines: for drills with faults.
    pub engines: Option<ReplayEngines>,
}

/// The engines of a replay.
#[derive(Clone)]
pub struct ReplayEngines {
    /// Copies to the device tier.
    pub load: Arc<dyn TransferEngine>,
    /// Copies to lower tiers.
    pub store: Arc<dyn TransferEngine>,
}

const fn percent(percent: u64) -> Capacity {
    Capacity::Share(percent * 1_000_000)
}

impl ByteReplayOptions {
    /// The configuration of the manager that `trace` is driven through.
    pub(super) fn manager(&self, trace: &Trace) -> Result<KvBlockManagerConfig, ReplayError> {
        let device = blocks("device_blocks", self.device_blocks, trace)?;
        if device == 0 {
            return Err(ReplayError::NoDevice);
        }
        let host = blocks("host_blocks", self.host_blocks, trace)?;
        let mut settings = Config::default();
        settings.model = shape::of_bytes(self.bytes_per_block)?;
        settings.eviction = self.policy;
        // The replay stores each block itself and waits for it. From the host tier to the drive they
        // go by themselves, and it waits for that too.
        settings.offload.policy = OffloadPolicy::Manual;
        if let Some(dir) = &self.disk {
            let Some(dir) = dir.to_str() else {
                return Err(ReplayError::Directory { dir: dir.clone() });
            };
            let disk = self.disk_blocks.unwrap_or(percent(100));
            settings.offload.policy = OffloadPolicy::WriteThrough;
            settings.offload.queue_blocks = device.max(1 << 14);
            settings.disk.dir = Some(dir.to_owned());
            settings.disk.capacity = config::Capacity::Blocks(blocks("disk_blocks", disk, trace)?);
            settings.model.name = Some(format!("trace {}", trace.name()));
        } else if self.disk_blocks.is_some() {
            return Err(ReplayError::NoDirectory);
        }
        settings.transfer.deadline_ms = DEADLINE_MS;
        let tier = |blocks| KvManagerLayoutConfig::builder().num_blocks(blocks).build();
        let mut builder = KvBlockManagerConfig::builder()
            .settings(settings)
            .device_layout(tier(device))
            .host_layout(tier(host));
        if let Some(ReplayEngines { load, store }) = self.engines.clone() {
            builder = builder.engines(load, store);
        }
        Ok(builder.build()?)
    }
}

impl Default for ByteReplayOptions {
    fn default() -> Self {
        Self::builder().build()
    }
}

/// Blocks of a tier. Zero has to be said, it does not come from rounding.
fn blocks(option: &'static str, asked: Capacity, trace: &Trace) -> Result<usize, ReplayError> {
    let blocks = asked.blocks(trace.unique_blocks());
    if blocks == 0 && matches!(asked, Capacity::Share(_)) {
        return Err(ReplayError::NoBlocks {
            option,
            share: asked,
            unique_blocks: trace.unique_blocks(),
            trace: trace.name().to_owned(),
        });
    }
    Ok(usize::try_from(blocks).unwrap_or(usize::MAX))
}
