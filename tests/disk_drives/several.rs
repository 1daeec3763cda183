//! A rig on several drives, each a real directory that can misbehave.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use dynamo_llm::block_manager::{
    KvBlockManager, KvBlockManagerConfig, ManagerError, SequenceHash,
    config::{Capacity, DriveConfig},
    io::{
        HealthOptions, OsVolume, PsyncOptions, Volume,
        fault::{FaultVolume, Faults},
    },
    storage::disk::inspect,
};

use crate::rig::{Rig, Setup, hashes};

/// Drives in folders of their own, with room for so many blocks each.
pub(crate) struct Drives {
    pub(crate) root: tempfile::TempDir,
    pub(crate) setup: Setup,
    pub(crate) volumes: BTreeMap<String, Arc<FaultVolume>>,
}

impl Drives {
    pub(crate) fn new(drives: &[(&str, usize)]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut setup = Setup::new(0, 0).manual();
        setup.settings.disk.capacity = Capacity::Default;
        let mut volumes = BTreeMap::new();
        for &(name, blocks) in drives {
            let dir = root.path().join(name);
            std::fs::create_dir_all(&dir).unwrap();
            let volume = OsVolume::new(&dir, true).unwrap();
            let volume = FaultVolume::new(Arc::new(volume), Faults::none(7));
            volumes.insert(name.to_owned(), Arc::new(volume));
            let drive = DriveConfig::new(dir.to_str().unwrap(), Capacity::Blocks(blocks));
            setup.settings.disk.drives.push(drive);
        }
        let mut health = HealthOptions::default();
        health.failures = 2;
        health.probe_after = Duration::from_secs(3600);
        let mut io = PsyncOptions::default();
        (io.load_threads, io.store_threads, io.health) = (2, 2, health);
        setup.io = Some(io);
        Self { root, setup, volumes }
    }

    pub(crate) fn try_open(&self) -> Result<Rig, ManagerError> {
        let mut builder = KvBlockManagerConfig::builder().settings(self.setup.settings.clone());
        for volume in self.volumes.values() {
            builder = builder.disk_volume(volume.clone() as Arc<dyn Volume>);
        }
        builder = builder.disk_io(self.setup.io.clone().unwrap());
        Ok(Rig { manager: KvBlockManager::new_blocking(builder.build()?)? })
    }

    pub(crate) fn open(&self) -> Rig {
        self.try_open().unwrap()
    }

    pub(crate) fn dir(&self, name: &str) -> std::path::PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn kill(&self, name: &str) {
        let mut faults = Faults::none(1);
        faults.errors = 1.0;
        self.volumes[name].set_faults(faults);
    }

    pub(crate) fn heal(&self, name: &str) {
        self.volumes[name].set_faults(Faults::none(1));
    }
}

pub(crate) fn blocks_in(dir: &Path) -> u64 {
    inspect(dir).unwrap().blocks
}

/// Chains of one block each, so that none is needed to find another.
pub(crate) fn singles(seed: u32, count: u32) -> Vec<SequenceHash> {
    (0..count).flat_map(|number| hashes(seed << 10 | number, 1)).collect()
}

/// Stores each on disk; how many were.
pub(crate) fn store_all(rig: &Rig, hashes: &[SequenceHash]) -> usize {
    let stored = |hash: &SequenceHash| {
        let ok = rig.store(&[*hash])[0].is_ok();
        rig.clear_memory();
        ok
    };
    hashes.iter().filter(|hash| stored(hash)).count()
}

/// Those that arrive from disk, every byte right.
pub(crate) fn arriving(rig: &Rig, hashes: &[SequenceHash]) -> Vec<SequenceHash> {
    let arrives = |hash: &&SequenceHash| {
        let arrived = rig.get(&[**hash]).blocks.len() == 1;
        rig.clear_memory();
        arrived
    };
    hashes.iter().filter(arrives).copied().collect()
}
