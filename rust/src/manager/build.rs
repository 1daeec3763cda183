//! From a configuration to tiers.

use std::ops::ControlFlow;

use super::{KvBlockManagerConfig, KvManagerLayoutConfig, ManagerError, disk_tier, sizing};
use crate::{
    config::{Config, ConfigError, Finding, LayoutKind, Severity, Tier},
    events::EventStream,
    layout::{BlockLayout, LayoutConfig, LayoutType},
    offload::{CurrentFingerprint, TierBlocks},
    pool::{PoolError, SlotPool, SlotPoolOptions},
    seal::{Fingerprint, FingerprintFields, TILE_BYTES},
    storage::{AvailableMemory, Storage, StorageError, SystemStorage, available_memory},
    sync::Arc,
    transfer::BlockMemory,
};

/// Most bytes that a slot costs beside its block and its seal: 76 in the pool, 22 in its index, 65 in
/// the largest policy.
const BOOKS_PER_SLOT: u64 = 76 + 22 + 65;

/// The tiers, fastest first, and what there is to say about them.
pub(super) struct Tiers {
    pub(super) device: Option<Arc<TierBlocks>>,
    pub(super) host: Option<Arc<TierBlocks>>,
    pub(super) disk: Option<Arc<TierBlocks>>,
    /// How the device packs a region, where it says so.
    pub(super) packing: Option<String>,
    pub(super) fingerprint: CurrentFingerprint,
    pub(super) findings: Vec<Finding>,
}

pub(super) fn tiers(
    config: &KvBlockManagerConfig,
    events: &Arc<EventStream>,
) -> Result<Tiers, ManagerError> {
    let settings = &config.settings;
    let available = available_memory();
    let mut findings = config.findings.clone();
    let device = sizing::blocks(settings, Tier::Device, &available, &mut findings);
    let host = sizing::blocks(settings, Tier::Host, &available, &mut findings);
    let device = Plan::new(settings, Tier::Device, device, &config.device)?;
    let mut host = Plan::new(settings, Tier::Host, host, &config.host)?;
    // What comes down is kept as it was packed, and so it is the same for everybody who reads it.
    let packing = device.as_ref().and_then(|device| device.layout.packing());
    if let (Some(host), Some(packing)) = (&mut host, packing)
        && host.layout.packing().is_none()
    {
        host.layout = host.layout.packed(packing);
    }
    if let (Some(device), Some(host)) = (&device, &host) {
        check_host(settings, device, host, &mut findings)?;
    }
    check_sum(device.iter().chain(&host), &available)?;
    if device.as_ref().is_some_and(|device| device.layout_config.storage.is_none()) {
        findings.push(Finding::new(
            Severity::Info,
            "device",
            "ordinary memory",
            "no GPU memory was given, so the device tier lies in ordinary memory",
            "give the device tier its storage to use a GPU's",
        ));
    }
    let packing = device.iter().chain(&host).find_map(|plan| plan.layout.packing());
    let packing = packing.map(str::to_owned);
    let fingerprint = CurrentFingerprint::new(fingerprint(settings, packing.as_deref()));
    let build = |plan: Plan<'_>, findings: &mut Vec<Finding>| {
        plan.build(settings, &fingerprint, &available, events, findings).map(Arc::new)
    };
    let device = device.map(|plan| build(plan, &mut findings)).transpose()?;
    let host = host.map(|plan| build(plan, &mut findings)).transpose()?;
    let disk = disk_tier::tier(config, &fingerprint, events, &mut findings)?.map(Arc::new);
    Ok(Tiers { device, host, disk, packing, fingerprint, findings })
}

/// A tier whose arithmetic is done and whose memory is not taken yet.
struct Plan<'a> {
    tier: Tier,
    blocks: usize,
    layout: BlockLayout,
    layout_config: &'a KvManagerLayoutConfig,
}

impl<'a> Plan<'a> {
    /// `None` when the tier is off.
    fn new(
        settings: &Config,
        tier: Tier,
        blocks: usize,
        layout_config: &'a KvManagerLayoutConfig,
    ) -> Result<Option<Self>, ManagerError> {
        if blocks == 0 {
            return Ok(None);
        }
        let max = SlotPool::MAX_CAPACITY;
        if blocks > max {
            return Err(PoolError::InvalidCapacity { tier, capacity: blocks, max }.into());
        }
        if let Some(layout) = &layout_config.layout {
            return Ok(Some(Self { tier, blocks, layout: layout.clone(), layout_config }));
        }
        let kind = settings.tier(tier).map_or(LayoutKind::FullyContiguous, |tier| tier.layout);
        let layout_type = layout_config.layout_type.clone().unwrap_or_else(|| layout_type(kind));
        let model = &settings.model;
        let shape = LayoutConfig::builder()
            .num_blocks(blocks)
            .num_layers(model.num_layers)
            .outer_dim(model.outer_dim)
            .page_size(model.page_size)
            .inner_dim(model.inner_dim)
            .dtype(model.dtype)
            .build();
        let layout = BlockLayout::new(shape, &layout_type)
            .map_err(|source| ManagerError::Layout { tier, source })?;
        Ok(Some(Self { tier, blocks, layout, layout_config }))
    }

    /// Bytes of ordinary memory that the tier will take, its books included.
    fn system_bytes(&self) -> u64 {
        let ours = self.layout_config.storage.is_none() && self.layout_config.allocator.is_none();
        let sizes = self.layout.storage_sizes().iter().map(|&size| size as u64);
        let bytes: u64 = if ours { sizes.sum() } else { 0 };
        let tiles = match self.tier {
            Tier::Device => 0,
            _ => {
                self.layout.block_bytes() / TILE_BYTES
                    + self.layout.num_layers() * self.layout.outer_dim()
            }
        };
        let seal = size_of::<u64>() * (2 + tiles);
        bytes.saturating_add(self.blocks as u64 * (BOOKS_PER_SLOT + seal as u64))
    }

    fn build(
        self,
        settings: &Config,
        fingerprint: &CurrentFingerprint,
        available: &AvailableMemory,
        events: &Arc<EventStream>,
        findings: &mut Vec<Finding>,
    ) -> Result<TierBlocks, ManagerError> {
        let Self { tier, blocks, layout, layout_config } = self;
        let refuse = |source| ManagerError::Storage { tier, blocks, source };
        let storages = match (&layout_config.storage, &layout_config.allocator) {
            (Some(storages), _) => storages.clone(),
            (None, Some(allocator)) => {
                let sizes = layout.storage_sizes().iter();
                let storages: Result<_, _> = sizes.map(|&size| allocator.allocate(size)).collect();
                storages.map_err(refuse)?
            }
            (None, None) => system(settings, tier, &layout, available, findings).map_err(refuse)?,
        };
        let policy = match &layout_config.policy {
            Some(policy) => policy(blocks as u32),
            None => settings.eviction_of(tier).build(blocks as u32),
        };
        let memory = Arc::new(BlockMemory::new(layout, storages).map_err(refuse)?);
        let events = events.is_attached().then(|| events.clone());
        let pool = SlotPool::new(SlotPoolOptions {
            events,
            ..SlotPoolOptions::new(tier, blocks, policy)
        })?;
        let fingerprint = fingerprint.clone();
        Ok(match tier {
            Tier::Device => TierBlocks::unsealed(pool, memory, fingerprint),
            _ => TierBlocks::sealed(pool, memory, fingerprint),
        })
    }
}

/// All tiers together must fit, not each alone: memory is committed only as it is touched.
fn check_sum<'a>(
    plans: impl Iterator<Item = &'a Plan<'a>> + Clone,
    available: &AvailableMemory,
) -> Result<(), ManagerError> {
    let total = plans.clone().fold(0_u64, |sum, plan| sum.saturating_add(plan.system_bytes()));
    let Err(source) = available.check(total) else { return Ok(()) };
    // Blame the tier that asks for most.
    let largest = plans.max_by_key(|plan| plan.system_bytes());
    let (tier, blocks) = largest.map_or((Tier::Device, 0), |plan| (plan.tier, plan.blocks));
    Err(ManagerError::Storage { tier, blocks, source })
}

/// A host that was sized by default may be smaller than a device that was not. Where both are
/// stated, validation has said it.
fn check_host(
    settings: &Config,
    device: &Plan<'_>,
    host: &Plan<'_>,
    findings: &mut Vec<Finding>,
) -> Result<(), ConfigError> {
    let stated = |tier| settings.blocks(tier).is_some();
    if host.blocks >= device.blocks || stated(Tier::Device) && stated(Tier::Host) {
        return Ok(());
    }
    let finding = Finding::new(
        if settings.strict { Severity::Error } else { Severity::Warning },
        "host.blocks",
        host.blocks,
        format!(
            "smaller than the device tier of {} blocks: the host would drop blocks that the \
             device still holds and hardly add a hit",
            device.blocks
        ),
        format!("give the host more than {} blocks, or 0 to switch it off", device.blocks),
    );
    if settings.strict {
        return Err(ConfigError::Invalid { findings: vec![finding] });
    }
    findings.push(finding);
    Ok(())
}

fn system(
    settings: &Config,
    tier: Tier,
    layout: &BlockLayout,
    available: &AvailableMemory,
    findings: &mut Vec<Finding>,
) -> Result<Vec<Arc<dyn Storage>>, StorageError> {
    let prefault = settings.tier(tier).is_some_and(|tier| tier.prefault);
    let huge_pages = settings.tier(tier).is_some_and(|tier| tier.huge_pages);
    let mut storages: Vec<Arc<dyn Storage>> = Vec::new();
    for &size in layout.storage_sizes() {
        let storage = SystemStorage::within(size, available)?;
        // Before anything is touched.
        if huge_pages && let Err(error) = storage.prefer_huge_pages() {
            findings.push(Finding::new(
                Severity::Warning,
                format!("{tier}.huge_pages"),
                true,
                format!("not to be had: {error}"),
                "the tier lies in ordinary pages",
            ));
        }
        if prefault {
            let threads = settings.transfer.threads_or_default();
            let committed = storage.prefault(threads, |_| ControlFlow::Continue(()));
            if let Err(error) = committed {
                findings.push(Finding::new(
                    Severity::Warning,
                    format!("{tier}.prefault"),
                    true,
                    format!("not everything was committed: {error}"),
                    "the rest is committed at first touch",
                ));
            }
        }
        storages.push(Arc::new(storage));
    }
    Ok(storages)
}

fn layout_type(kind: LayoutKind) -> LayoutType {
    match kind {
        LayoutKind::FullyContiguous => LayoutType::FullyContiguous,
        LayoutKind::Paged => LayoutType::Paged,
        LayoutKind::LayerSeparate => LayoutType::LayerSeparate { outer_contiguous: false },
    }
}

/// What decides how stored bytes are read. The device's own layout is not part of it: lower tiers
/// hold blocks in canonical order whatever it is; how a region is packed inside is.
pub(super) fn fingerprint(settings: &Config, packing: Option<&str>) -> Fingerprint {
    let model = &settings.model;
    let shape = format!(
        "layers={} outer={} page={} inner={}",
        model.num_layers, model.outer_dim, model.page_size, model.inner_dim
    );
    FingerprintFields::builder()
        .maybe_model(model.name.clone())
        .maybe_revision(model.revision.clone())
        .maybe_weights(model.adapter.clone())
        .dtype(model.dtype.name())
        .page_size(model.page_size as u64)
        .layout(shape)
        .maybe_attention(packing)
        .build()
        .fingerprint()
}
