//! A bit that changes in host memory, between a block's landing there and its way on to the drive.

use std::sync::Arc;

use dynamo_llm::block_manager::{
    KvBlockManager, KvBlockManagerConfig, KvManagerLayoutConfig, KvManagerModelConfig, Tier,
    config::Capacity,
    io::fault::{FaultVolume, Faults, MemoryVolume},
    metrics::Edge,
    storage::{Storage, SystemStorage},
};

use super::tools::eventually;
use crate::rig::{FROM_DISK, LONG, Rig, Setup, TO_DISK, hashes};

const BLOCKS: usize = 8;

/// Changes a bit in each page of a storage, as failing memory would.
#[allow(unsafe_code)]
fn change(host: &SystemStorage) {
    for page in 0..host.size() / 4096 {
        // SAFETY: inside the region; the copies under way read it after this or before, and find
        // one byte or the other.
        unsafe {
            let byte = host.as_mut_ptr().add(page * 4096 + 7);
            byte.write_volatile(byte.read_volatile() ^ 4);
        }
    }
}

#[test]
fn what_changes_in_host_memory_is_never_stored_as_right() {
    // Of whole pages, which a drive reads where they lie, and of others, which are copied once more.
    for inner in [128, 40] {
        let model = KvManagerModelConfig::builder().num_layers(2).page_size(4).inner_dim(inner);
        let drive = Arc::new(FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1)));
        let host = Arc::new(SystemStorage::new(BLOCKS * 4096).unwrap());
        let mut setup = Setup::new(BLOCKS, 64);
        setup.settings.model = model.build();
        setup.settings.host.capacity = Capacity::Default;
        let layout = KvManagerLayoutConfig {
            num_blocks: Some(BLOCKS),
            storage: Some(vec![host.clone() as Arc<dyn Storage>]),
            ..KvManagerLayoutConfig::default()
        };
        let builder = KvBlockManagerConfig::builder().settings(setup.settings).host_layout(layout);
        let config = builder.disk_volume(drive.clone()).build().unwrap();
        let rig = Rig { manager: KvBlockManager::new_blocking(config).unwrap() };

        drive.stall();
        let chain = hashes(1, BLOCKS);
        drop(rig.fill(&chain));
        let landed = Edge { from: Tier::Device, to: Tier::Host };
        eventually("all have landed", || rig.edge(landed).blocks == BLOCKS as u64);
        change(&host);
        drive.resume();
        rig.manager.flush_blocking(LONG).unwrap();
        rig.clear_memory();
        // Every byte that arrives is looked at.
        let arrived = rig.get(&chain).blocks.len();
        let found_out = [TO_DISK, FROM_DISK].map(|edge| rig.edge(edge).failures["verification"]);
        // Those that were read before the change are right.
        assert!(arrived < BLOCKS, "{arrived}");
        assert!(found_out.iter().sum::<u64>() > 0, "{found_out:?}");
        rig.check();
    }
}
