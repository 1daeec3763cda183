//! The ways between the tiers of a manager.
//!
//! Down: device to host, host to disk, and device to disk for whoever asks and where there is no
//! host tier. By write-through a block takes them as it lands. Up: host to device and disk to
//! device; what came from disk is offered to the host tier, so that it is nearer next time.

use super::config::Engines;
use crate::{
    config::{Config, OffloadPolicy, Tier},
    metrics::{Edge, EdgeMetrics},
    offload::{LoadEdge, Onward, ResetEpoch, StoreEdge, StoreOptions, TierBlocks},
    sync::Arc,
    transfer::{DeadlineTimer, HostEngine, TransferEngine, disk::DiskEngine},
};

/// Blocks under way at a time on behalf of write-through: each keeps a slot on both sides.
const IN_FLIGHT: usize = 256;

/// The same to a drive, which is slow: what is under way keeps its slots in the host tier from
/// others.
const IN_FLIGHT_TO_DISK: usize = 32;

/// The edges of a manager.
pub(super) struct Edges {
    /// Each before those that its blocks take further down.
    pub(super) down: Vec<StoreEdge>,
    pub(super) up: Option<LoadEdge>,
    write_through: bool,
}

impl Edges {
    pub(super) fn new(
        tiers: [Option<&Arc<TierBlocks>>; 3],
        engines: Option<Engines>,
        settings: &Config,
        resets: &ResetEpoch,
    ) -> Self {
        let [device, host, disk] = tiers;
        let timer = DeadlineTimer::new();
        let write_through = settings.offload.policy == OffloadPolicy::WriteThrough;
        let engines = engines.unwrap_or_else(|| host_engines(settings));
        let to_disk: Arc<dyn TransferEngine> = Arc::new(DiskEngine);
        let store = |upper: &Arc<TierBlocks>, lower: &Arc<TierBlocks>, engine, onward| {
            let most = match lower.tier() {
                // A quarter of a small tier above, so that a slow drive never has it all.
                Tier::Disk => IN_FLIGHT_TO_DISK.min(upper.pool().capacity().div_ceil(4)),
                _ => IN_FLIGHT,
            };
            let options = StoreOptions {
                queue_blocks: settings.offload.queue_blocks,
                in_flight_blocks: most,
            };
            let (upper, lower) = (upper.clone(), lower.clone());
            StoreEdge::new(upper, lower, engine, onward, timer.clone(), resets.clone(), options)
        };
        let host_disk = host.zip(disk).map(|(host, disk)| store(host, disk, to_disk.clone(), None));
        let device_host = device.zip(host).map(|(device, host)| {
            let onward = host_disk.clone().filter(|_| write_through);
            store(device, host, engines.store.clone(), onward)
        });
        let device_disk =
            device.zip(disk).map(|(device, disk)| store(device, disk, to_disk.clone(), None));

        let up = device.filter(|_| host.is_some() || disk.is_some()).map(|device| {
            let nearer = device_host.clone().filter(|_| write_through).map(Onward::Arrived);
            // What a budget declined is used again: it is worth a write now.
            let counted = disk.is_some_and(|disk| disk.has_write_budget()) && write_through;
            let deeper = host_disk.clone().filter(|_| counted).map(Onward::Source);
            let from_host = host.map(|host| (host.clone(), engines.load.clone(), deeper));
            let from_disk = disk.map(|disk| (disk.clone(), to_disk, nearer));
            let lower = from_host.into_iter().chain(from_disk);
            LoadEdge::new(device.clone(), lower, timer.clone(), resets.clone())
        });
        let down = [device_host, host_disk, device_disk].into_iter().flatten().collect();
        Self { down, up, write_through }
    }

    /// The way from one tier down to another.
    pub(super) fn between(&self, from: Tier, to: Tier) -> Option<&StoreEdge> {
        self.down.iter().find(|edge| edge.edge() == Edge { from, to })
    }

    /// The way from a tier to the next lower one.
    pub(super) fn from(&self, tier: Tier) -> Option<&StoreEdge> {
        self.down.iter().find(|edge| edge.edge().from == tier)
    }

    /// The way that blocks registered in `tier` take by themselves: to the next lower tier.
    pub(super) fn by_itself(&self, tier: Tier) -> Option<StoreEdge> {
        self.from(tier).filter(|_| self.write_through).cloned()
    }

    /// Blocks that wait or are on their way down.
    pub(super) fn unfinished(&self) -> usize {
        self.down.iter().map(StoreEdge::unfinished).sum()
    }

    pub(super) fn close(&self) {
        self.down.iter().for_each(StoreEdge::close);
    }

    pub(super) fn metrics(&self) -> impl Iterator<Item = (Edge, EdgeMetrics)> + '_ {
        let down = self.down.iter().map(|edge| (edge.edge(), edge.metrics()));
        down.chain(self.up.iter().flat_map(LoadEdge::metrics))
    }
}

fn host_engines(settings: &Config) -> Engines {
    let threads = settings.transfer.threads_or_default();
    // Twice what may wait for write-through, so that explicit offloads have room beside it.
    let limit = 2 * settings.offload.queue_blocks.max(IN_FLIGHT);
    Engines {
        load: Arc::new(HostEngine::new("dynamo-load", threads, limit)),
        store: Arc::new(HostEngine::new("dynamo-store", threads, limit)),
    }
}
