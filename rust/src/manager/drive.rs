//! From a configuration to the disk tier.

use std::path::Path;

use super::{KvBlockManagerConfig, ManagerError};
use crate::{
    config::{Capacity, Config, DiskDurability, Finding, Severity, Tier, format_size},
    events::EventStream,
    io::{PsyncEngine, PsyncOptions},
    layout::{BlockLayout, LayoutConfig, LayoutType},
    offload::TierBlocks,
    pool::{PoolError, SlotPool, SlotPoolOptions},
    seal::{Fingerprint, SealTiling},
    storage::disk::{
        DiskDirectory, DiskError, DiskOptions, Durability, Geometry, RecoveryReport, Superblocks,
    },
    sync::Arc,
    transfer::disk::{DiskBlocks, DiskBlocksOptions},
};

/// The disk tier; `None` when it is off.
pub(super) fn tier(
    config: &KvBlockManagerConfig,
    fingerprint: Fingerprint,
    events: &Arc<EventStream>,
    findings: &mut Vec<Finding>,
) -> Result<Option<TierBlocks>, ManagerError> {
    let settings = &config.settings;
    let disk = &settings.disk;
    let Some(dir) = disk.dir.as_deref().filter(|_| !disk.is_off()) else { return Ok(None) };
    let (geometry, tiling) = geometry(settings)?;
    let (blocks, bytes) = size(disk.capacity, geometry)?;
    let layout = layout(settings, blocks)?;

    let mut options = DiskOptions::new(bytes, geometry);
    options.direct = disk.direct;
    options.reuse = disk.reuse;
    options.durability = match disk.durability {
        DiskDurability::Power => Durability::Power,
        _ => Durability::Process,
    };
    let (directory, recovered) = match &config.drive.volume {
        Some(volume) => DiskDirectory::open_on(volume.clone(), options)?,
        None => DiskDirectory::open(Path::new(dir), options)?,
    };
    for finding in directory.findings() {
        findings.push(info("disk.dir", dir, finding.to_string(), "nothing is needed"));
    }

    let io = config.drive.io.clone().unwrap_or_else(|| PsyncOptions {
        load_threads: disk.io_threads,
        store_threads: disk.io_threads.div_ceil(2),
        load_queue: 1 << 16,
        store_queue: 1 << 14,
        ..PsyncOptions::default()
    });
    let threads = (io.load_threads, io.store_threads);
    let (blocks, found) = DiskBlocks::new(DiskBlocksOptions {
        directory,
        recovered: recovered.blocks,
        layout,
        tiling,
        fingerprint,
        label: label(settings),
        io: Arc::new(PsyncEngine::new(io).map_err(DiskError::from)?),
        threads,
    })?;
    findings.push(recovery(dir, disk.reuse, &recovered.report, found.len()));
    let capacity = blocks.layout().num_blocks();
    let policy = settings.eviction_of(Tier::Disk).build(capacity as u32);
    let events = events.is_attached().then(|| events.clone());
    let options = SlotPoolOptions::new(Tier::Disk, capacity, policy);
    let pool = SlotPool::new(SlotPoolOptions { events, ..options })?;
    Ok(Some(TierBlocks::on_disk(pool, Arc::new(blocks), &found)?))
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

/// Blocks, and the most bytes of everything.
fn size(capacity: Capacity, geometry: Geometry) -> Result<(usize, u64), ManagerError> {
    let max = SlotPool::MAX_CAPACITY;
    let (blocks, bytes) = match capacity {
        Capacity::Bytes(bytes) => {
            let slots = geometry.slots_in(bytes).min(max as u64);
            (usize::try_from(slots).unwrap_or(max), bytes)
        }
        Capacity::Blocks(blocks) => (blocks, geometry.directory_bytes(blocks as u64)),
        _ => (0, 0),
    };
    if blocks == 0 {
        return Err(DiskError::InvalidConfig {
            field: "disk.bytes",
            value: format_size(bytes),
            remedy: "give room for at least one block",
        }
        .into());
    }
    if blocks > max {
        return Err(PoolError::InvalidCapacity { tier: Tier::Disk, capacity: blocks, max }.into());
    }
    Ok((blocks, bytes))
}

/// What people call the fingerprint.
fn label(settings: &Config) -> String {
    let model = &settings.model;
    let name = model.name.as_deref().unwrap_or("unnamed model");
    let revision = model.revision.as_deref().unwrap_or("unset");
    format!("{name} at {revision}, {}", model.dtype.name())
}

/// What was kept, and why the rest was not.
fn recovery(dir: &str, reuse: bool, report: &RecoveryReport, readable: usize) -> Finding {
    let mut said = vec![format!("{readable} blocks found")];
    let others = report.kept.saturating_sub(readable as u64);
    if others > 0 {
        said.push(format!("{others} of other models left alone"));
    }
    let dropped = report.dropped.iter();
    said.extend(dropped.map(|(reason, count)| format!("{count} dropped ({reason})")));
    if !report.removed.is_empty() {
        said.push(format!("{} old files removed", report.removed.len()));
    }
    said.extend(report.died.iter().map(|died| format!("the owner before died ({died})")));
    // Also what is said of a directory that is not to be reused.
    let lost = reuse && report.superblocks == Superblocks::Lost;
    if lost {
        said.push("the superblock was lost and the directory starts empty".to_owned());
    }
    let said = said.join(", ");
    if lost {
        let remedy = "look for damage on the drive";
        return Finding::new(Severity::Warning, "disk.dir", dir, said, remedy);
    }
    info("disk.dir", dir, said, "nothing is needed")
}

fn info(field: &str, value: &str, message: String, remedy: &str) -> Finding {
    Finding::new(Severity::Info, field, value, message, remedy)
}
