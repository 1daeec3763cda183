//! From a configuration to the disk tier.

use super::{KvBlockManagerConfig, ManagerError, drives};
use crate::{
    config::{Config, Finding, Tier},
    events::EventStream,
    io::SystemClock,
    layout::{BlockLayout, LayoutConfig, LayoutType},
    offload::{Admission, CurrentFingerprint, TierBlocks},
    pool::{PoolError, Section, SlotPool, SlotPoolOptions},
    seal::SealTiling,
    storage::disk::{DiskError, Geometry},
    sync::Arc,
    transfer::disk::{DiskBlocks, DiskBlocksOptions},
};

/// The disk tier; `None` when it is off.
pub(super) fn tier(
    config: &KvBlockManagerConfig,
    fingerprint: &CurrentFingerprint,
    events: &Arc<EventStream>,
    findings: &mut Vec<Finding>,
) -> Result<Option<TierBlocks>, ManagerError> {
    let settings = &config.settings;
    let drives = settings.disk.in_use();
    if drives.is_empty() {
        return Ok(None);
    }
    let (geometry, tiling) = geometry(settings)?;
    let drives = drives::open(config, &drives, geometry, fingerprint.get(), findings)?;
    let capacities: Vec<usize> = drives.iter().map(|drive| drive.options.capacity).collect();
    let budgets: Vec<_> = drives.iter().map(|drive| drive.write_bytes_per_day).collect();
    let capacity = capacities.iter().fold(0_usize, |sum, &one| sum.saturating_add(one));
    let max = SlotPool::MAX_CAPACITY;
    if capacity > max {
        return Err(PoolError::InvalidCapacity { tier: Tier::Disk, capacity, max }.into());
    }
    let (options, reports): (Vec<_>, Vec<_>) =
        drives.into_iter().map(|drive| (drive.options, drive.report)).unzip();
    let (blocks, found) = DiskBlocks::new(DiskBlocksOptions {
        layout: layout(settings, capacity)?,
        tiling,
        fingerprint: fingerprint.get(),
        label: label(settings),
        patience: settings.transfer.deadline(),
        drives: options,
    })?;
    for (drive, report) in blocks.drives().iter().zip(&reports) {
        findings.push(drives::recovery(drive, settings.disk.reuse, report));
    }
    let kind = settings.eviction_of(Tier::Disk);
    let section = |&capacity: &usize| {
        let policy = match &config.disk.policy {
            Some(policy) => policy(capacity as u32),
            None => kind.build(capacity as u32),
        };
        Section { capacity, policy }
    };
    let sections = capacities.iter().map(section).collect();
    let events = events.is_attached().then(|| events.clone());
    let pool = SlotPool::new(SlotPoolOptions { tier: Tier::Disk, sections, events })?;
    let clock = match &config.drive.io {
        Some(io) => io.clock.clone(),
        None => Arc::new(SystemClock),
    };
    let admission = Admission::new(&budgets, capacity / 2, clock);
    let blocks = Arc::new(blocks);
    let tier = TierBlocks::on_disk(pool, blocks, fingerprint.clone(), &found, admission)?;
    Ok(Some(tier))
}

/// What decides the size of a slot, and how a block is cut.
fn geometry(settings: &Config) -> Result<(Geometry, SealTiling), ManagerError> {
    let layout = layout(settings, 1)?;
    let regions = layout.num_layers() * layout.outer_dim();
    let invalid = |_| DiskError::InvalidConfig {
        field: "model",
        value: layout.to_string(),
        remedy: "correct the shape of the blocks",
    };
    let tiling = SealTiling::new(regions, layout.region_bytes()).map_err(invalid)?;
    let tiles = u32::try_from(tiling.tiles()).unwrap_or(u32::MAX);
    Ok((Geometry::new(layout.block_bytes() as u64, tiles)?, tiling))
}

/// Blocks as they lie in a slot: one run each.
fn layout(settings: &Config, blocks: usize) -> Result<BlockLayout, ManagerError> {
    let model = &settings.model;
    let shape = LayoutConfig::builder()
        .num_blocks(blocks)
        .num_layers(model.num_layers)
        .outer_dim(model.outer_dim)
        .page_size(model.page_size)
        .inner_dim(model.inner_dim)
        .dtype(model.dtype)
        .build();
    BlockLayout::new(shape, &LayoutType::FullyContiguous)
        .map_err(|source| ManagerError::Layout { tier: Tier::Disk, source })
}

/// What people call the fingerprint.
pub(super) fn label(settings: &Config) -> String {
    let model = &settings.model;
    let name = model.name.as_deref().unwrap_or("unnamed model");
    let revision = model.revision.as_deref().unwrap_or("unset");
    format!("{name} at {revision}, {}", model.dtype.name())
}
