//! Any history, stopped anywhere, against a model of what must be found.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dynamo_llm::block_manager::io::fault::{Crash, MemoryVolume};
use dynamo_llm::block_manager::io::{OpenFile, Volume};
use dynamo_llm::block_manager::storage::disk::{
    DiskDirectory, DiskError, DiskSlot, Durability, FingerprintId, Recovered, Superblocks,
};
use proptest::{prelude::*, test_runner::FileFailurePersistence};

use crate::rig::*;

#[derive(Clone, Debug)]
enum Op {
    Store,
    /// Stores a newer version of a block that is there.
    Replace(usize),
    Evict(usize),
    Touch(usize),
    GiveUp(usize),
    Reset,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => Just(Op::Store),
        3 => any::<usize>().prop_map(Op::Replace),
        4 => any::<usize>().prop_map(Op::Evict),
        2 => any::<usize>().prop_map(Op::Touch),
        1 => any::<usize>().prop_map(Op::GiveUp),
        1 => Just(Op::Reset),
    ];
    prop::collection::vec(op, 1..25)
}

/// What is known of the blocks: by version, the key and the slot.
#[derive(Default)]
struct Model {
    next: u64,
    /// Acknowledged and not evicted.
    there: BTreeMap<u64, (u64, DiskSlot)>,
    /// May be found or not: stores and evictions under way.
    unsure: BTreeMap<u64, (u64, DiskSlot)>,
    free: Vec<DiskSlot>,
    /// Stored before a reset that has returned.
    reset: BTreeSet<u64>,
}

impl Model {
    fn pick(&self, number: usize) -> Option<(u64, (u64, DiskSlot))> {
        let at = number % self.there.len().max(1);
        self.there.iter().nth(at).map(|(&version, &block)| (version, block))
    }

    fn forget(&mut self, version: u64) {
        let block = self.there.remove(&version);
        self.unsure.extend(block.map(|block| (version, block)));
    }

    fn run(&mut self, directory: &DiskDirectory, op: &Op) -> Result<(), DiskError> {
        let fingerprint = directory.fingerprint(DIGEST, "model")?;
        match *op {
            Op::Store => self.store(directory, fingerprint, None)?,
            Op::Replace(number) => self.store(directory, fingerprint, self.pick(number))?,
            Op::Evict(number) | Op::GiveUp(number) => {
                let Some((version, (_, slot))) = self.pick(number) else { return Ok(()) };
                self.forget(version);
                if matches!(op, Op::Evict(_)) {
                    directory.tombstone(&[slot])?;
                } else {
                    directory.give_up(&[slot])?;
                    directory.take_back(&[slot])?;
                }
                self.unsure.remove(&version);
                self.free.push(slot);
            }
            Op::Touch(number) => {
                let Some((version, (_, slot))) = self.pick(number) else { return Ok(()) };
                directory.touch(&[(slot, version + 1000)])?;
            }
            Op::Reset => {
                let all: Vec<u64> = self.there.keys().copied().collect();
                for version in all {
                    self.forget(version);
                }
                directory.next_generation(1, 0, drop)?;
                for (version, (_, slot)) in std::mem::take(&mut self.unsure) {
                    self.reset.insert(version);
                    self.free.push(slot);
                }
            }
        }
        Ok(())
    }

    fn store(
        &mut self,
        directory: &DiskDirectory,
        fingerprint: FingerprintId,
        replaced: Option<(u64, (u64, DiskSlot))>,
    ) -> Result<(), DiskError> {
        if self.free.is_empty() {
            let set = directory.current();
            self.free.extend(directory.grow(set, 3)?.map(|slot| DiskSlot { set, slot }));
        }
        let slot = self.free.pop().unwrap();
        let version = self.next;
        self.next += 1;
        let key = replaced.map_or(version, |(_, (key, _))| key);
        if let Some((old, _)) = replaced {
            self.forget(old);
        }
        self.unsure.insert(version, (key, slot));
        put(directory, slot, fingerprint, key, version)?;
        self.unsure.remove(&version);
        self.there.insert(version, (key, slot));
        if let Some((old, (_, slot))) = replaced {
            directory.tombstone(&[slot])?;
            self.unsure.remove(&old);
            self.free.push(slot);
        }
        Ok(())
    }

    /// Compares with what was found, and goes on from there. Fails when the volume stops while slots
    /// that were given up are taken back.
    fn compare(
        &mut self,
        directory: &DiskDirectory,
        recovered: &Recovered,
        loses: bool,
    ) -> Result<(), DiskError> {
        let mut found = BTreeMap::new();
        for block in &recovered.blocks {
            let (version, key) = (version(block.record.seal_root), version(block.record.key));
            found.insert(version, (key, block.slot));
            assert!(!self.reset.contains(&version), "{version} was reset");
            if loses {
                // Only the seal can tell here.
                continue;
            }
            let known = self.there.get(&version).or_else(|| self.unsure.get(&version));
            assert_eq!(known, Some(&(key, block.slot)), "{version} is a phantom");
            assert!(is_there(directory, block.slot, version), "{version} has other bytes");
            assert!([version, version + 1000].contains(&block.record.last_use));
        }
        if !loses {
            for version in self.there.keys() {
                assert!(found.contains_key(version), "{version} was lost");
            }
        }
        let set = directory.current();
        let used: BTreeSet<_> = found.values().map(|&(_, slot)| slot).collect();
        let (_, _, slots, holes) = directory.sets()[0];
        self.free = (0..slots).map(|slot| DiskSlot { set, slot }).collect();
        self.free.retain(|slot| !used.contains(slot));
        self.there = found;
        self.unsure.clear();
        if holes > 0 { directory.take_back(&self.free) } else { Ok(()) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        // Beside this file.
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    /// Any history, stopped at any operation by a kill or a power failure, again and again.
    #[test]
    fn no_end_loses_what_was_acknowledged_or_shows_what_was_not_written(
        rounds in prop::collection::vec((ops(), 1_u64..150, any::<u64>()), 1..5),
        durability in prop_oneof![Just(Durability::Process), Just(Durability::Power)],
        power_fails: bool,
        direct: bool,
    ) {
        let mut options = options();
        options.durability = durability;
        options.direct = direct;
        let loses = power_fails && durability == Durability::Process;
        let mut volume = MemoryVolume::new();
        let mut model = Model::default();
        for (ops, stop, seed) in rounds {
            volume.stop_after(stop, seed);
            // The stop may come while the directory is being opened.
            if let Ok((directory, recovered)) =
                DiskDirectory::open_on(Arc::new(volume.clone()), options.clone())
                && model.compare(&directory, &recovered, loses).is_ok()
            {
                for op in &ops {
                    if model.run(&directory, op).is_err() {
                        break;
                    }
                }
            }
            let crash = if power_fails { Crash::Power { seed } } else { Crash::Kill };
            volume = volume.after(crash);
        }
        let (directory, recovered) =
            DiskDirectory::open_on(Arc::new(volume.clone()), options.clone()).unwrap();
        model.compare(&directory, &recovered, loses).unwrap();
        drop(directory);
        let (_, again) = DiskDirectory::open_on(Arc::new(volume), options).unwrap();
        prop_assert_eq!(again.blocks, recovered.blocks);
        prop_assert_eq!(again.report.superblocks, Superblocks::Whole);
    }
}

#[test]
fn the_order_of_writes_and_syncs_can_be_seen_in_a_volume_that_stops_at_every_operation() {
    // One store, one eviction, one reset, stopped at each of their operations in turn.
    let mut options = options();
    options.durability = Durability::Power;
    let prepare = || {
        let volume = MemoryVolume::new();
        let (directory, _) =
            DiskDirectory::open_on(Arc::new(volume.clone()), options.clone()).unwrap();
        let fingerprint = directory.fingerprint(DIGEST, "").unwrap();
        let slots = grow(&directory, 2);
        put(&directory, slots[0], fingerprint, 0, 0).unwrap();
        (volume, directory, slots, fingerprint)
    };
    for stop in 1..20 {
        for seed in 0..30 {
            let (volume, directory, slots, fingerprint) = prepare();
            volume.stop_after(stop, seed);
            let stored = put(&directory, slots[1], fingerprint, 1, 1).is_ok();
            let evicted = stored && directory.tombstone(&slots[..1]).is_ok();
            let reset = evicted && directory.next_generation(1, 0, drop).is_ok();
            let volume = volume.after(Crash::Power { seed });
            let (directory, recovered) =
                DiskDirectory::open_on(Arc::new(volume), options.clone()).unwrap();
            let found = versions(&recovered);
            for block in &recovered.blocks {
                assert!(is_there(&directory, block.slot, version(block.record.seal_root)));
            }
            assert!(stored || found.contains(&0));
            assert!(!evicted || !found.contains(&0));
            assert!(!reset || found.is_empty());
            let acknowledged = stored && (!evicted || directory.generation() == 1);
            assert!(!acknowledged || found.contains(&1), "{stop} {seed}");
        }
    }
    let volume: Arc<dyn Volume> = Arc::new(MemoryVolume::new());
    assert!(volume.open("x", OpenFile::default()).is_err());
}
