//! Whole blocks through a manager: seals, records, pools and all.
//!
//! Stores come from the host tier, where blocks are sealed already, as they do by write-through; and
//! once more from the device, where they have to be summed on the way.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dynamo_llm::block_manager::io::PsyncOptions;
use dynamo_llm::block_manager::offload::Match;
use dynamo_llm::block_manager::pool::ImmutableSlots;
use dynamo_llm::block_manager::{
    EvictionMode, KvBlockManager, KvBlockManagerConfig, KvManagerLayoutConfig,
    KvManagerModelConfig, OnboardOptions, Registration, SequenceHash, Tier,
    config::{Capacity, Config, LayoutKind, OffloadPolicy},
};
use dynamo_llm::common::dtype::DType;

use crate::memory::HugePages;
use crate::reference::Reference;
use crate::{DEPTH, FILE, MIB, Way, figure};

/// A manager with a device and a host tier of `blocks` blocks, each a run of pages, and a disk tier.
pub(crate) fn manager(
    folder: &Path,
    bytes: usize,
    blocks: usize,
    on_disk: usize,
) -> KvBlockManager {
    let mut settings = Config::default();
    settings.model = KvManagerModelConfig::builder()
        .num_layers(1)
        .outer_dim(1)
        .page_size((bytes / 4096).max(1))
        .inner_dim(2048)
        .dtype(DType::FP16)
        .build();
    settings.device.capacity = Capacity::Blocks(blocks);
    settings.device.layout = LayoutKind::Paged;
    settings.host.capacity = Capacity::Blocks(blocks);
    settings.disk.dir = Some(folder.to_str().unwrap().to_owned());
    settings.disk.capacity = Capacity::Blocks(on_disk);
    settings.offload.policy = OffloadPolicy::Manual;
    let mut io = PsyncOptions::default();
    (io.load_threads, io.store_threads) = (DEPTH, DEPTH);
    let memory = KvManagerLayoutConfig::builder().allocator(Arc::new(HugePages)).build();
    let config = KvBlockManagerConfig::builder()
        .settings(settings)
        .device_layout(memory.clone())
        .host_layout(memory)
        .disk_io(io)
        .build()
        .unwrap();
    KvBlockManager::new_blocking(config).unwrap()
}

/// A manager, and what it is asked for.
struct Whole {
    manager: KvBlockManager,
    /// The tier that stores come from.
    upper: Tier,
    /// Blocks that one pass moves each way.
    count: usize,
    /// Last name that was used.
    name: u128,
    /// A chain on the drive alone.
    stored: Vec<SequenceHash>,
}

impl Whole {
    fn new(folder: &Path, mib: usize, upper: Tier) -> Self {
        let count = FILE / (mib * MIB);
        // Room for a chain that is loaded and one that is stored, above and below.
        let manager = manager(folder, mib * MIB, 2 * count, 2 * count);
        let mut whole = Self { manager, upper, count, name: 0, stored: Vec::new() };
        // The files have their room before anything is measured.
        whole.keep();
        whole.keep();
        whole
    }

    /// Stores a chain that is to be loaded.
    fn keep(&mut self) {
        let (names, held) = self.computed();
        self.store(&held);
        self.stored = names;
    }

    /// A chain to be stored under names that nobody has used; nothing else is in memory.
    fn computed(&mut self) -> (Vec<SequenceHash>, ImmutableSlots) {
        for tier in [self.manager.device(), self.manager.host()].into_iter().flatten() {
            tier.trigger_eviction_blocking(EvictionMode::Aggressive).unwrap();
        }
        let upper = self.manager.pool(self.upper).unwrap();
        let names = (0..self.count).map(|_| {
            self.name += 1;
            SequenceHash::from_u128(self.name << 64 | self.name)
        });
        let names: Vec<SequenceHash> = names.collect();
        let slots = upper.allocate_slots(self.count).unwrap();
        let held = upper.register_slots(slots, &Registration::chain(&names, 0, None)).unwrap();
        (names, held)
    }

    fn store(&self, held: &ImmutableSlots) {
        let results = self.manager.offload_slots_to(held, Tier::Disk).unwrap().wait(None).unwrap();
        assert!(results.iter().all(Result::is_ok));
    }

    fn find(&self) -> Match {
        let found = self.manager.lookup(&self.stored).unwrap();
        assert_eq!(found.count(Tier::Disk), self.count);
        found
    }

    fn load(&self, found: Match) {
        let arrived = self.manager.onboard_slots(found, OnboardOptions::default()).unwrap();
        assert_eq!(arrived.len(), self.count);
    }

    /// Time that one pass takes. Giving the blocks their names is not part of it.
    fn pass(&mut self, way: Way) -> Duration {
        let (_, held) = self.computed();
        let start = Instant::now();
        match way {
            Way::Write => self.store(&held),
            Way::Read => self.load(self.find()),
            Way::Mixed => {
                // First, so that the stores do not take its place on the drive.
                let found = self.find();
                let stores = self.manager.offload_slots_to(&held, Tier::Disk).unwrap();
                self.load(found);
                assert!(stores.wait(None).unwrap().iter().all(Result::is_ok));
            }
        }
        start.elapsed()
    }
}

pub(crate) fn rates(folder: &Path, mib: usize, reference: &mut Reference) {
    let device = [("disk_device", Way::Write)];
    let host = Way::ALL.map(|way| ("disk_tier", way));
    for (upper, figures) in [(Tier::Host, &host[..]), (Tier::Device, &device)] {
        let mut whole = Whole::new(&folder.join(format!("{upper}-{mib}")), mib, upper);
        for &(name, way) in figures {
            whole.keep();
            let name = format!("{name}_{}_{mib}mib", way.name());
            let reference_name = reference.name(way);
            let ours = || way.rate(|| whole.pass(way));
            figure::compare_rates(&name, "bytes/s", ours, &reference_name, || reference.rate(way));
        }
    }
}
