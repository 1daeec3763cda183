//! What the checker knows, and how it looks.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs,
};

use dynamo_llm::block_manager::{SequenceHash, Tier};

use crate::{
    child::{CHAIN, Life},
    rig::{FROM_DISK, LONG, hashes},
};

/// What was said, and what was found.
#[derive(Default)]
pub(crate) struct Book {
    /// Blocks of each chain that are acknowledged and not forgotten since.
    acked: BTreeMap<u32, usize>,
    /// Begun ever.
    pub(crate) begun: BTreeSet<u32>,
    /// Forgotten for good.
    forgotten: BTreeSet<u32>,
    /// Blocks that something happened to.
    damaged: HashSet<SequenceHash>,
    pub(crate) next: u32,
    /// Blocks that found no room.
    pub(crate) refused: usize,
    lost: usize,
    phantom: usize,
    pub(crate) found: usize,
}

impl Book {
    pub(crate) fn new() -> Self {
        Self { next: 1, ..Self::default() }
    }

    pub(crate) fn listen(&mut self, line: &str) {
        let mut words = line.split(' ');
        let (Some(word), Some(seed), Some(blocks)) = (words.next(), words.next(), words.next())
        else {
            return;
        };
        let (Ok(seed), Ok(blocks)) = (seed.parse::<u32>(), blocks.parse::<usize>()) else { return };
        match word {
            "storing" => drop(self.begun.insert(seed)),
            "ack" => {
                self.acked.insert(seed, blocks);
                self.refused += CHAIN - blocks;
            }
            // From here on they may be gone; from the answer on they must be.
            "resetting" => self.acked.clear(),
            "reset" => self.forgotten.extend(&self.begun),
            _ => return,
        }
        self.next = self.next.max(seed + 1);
    }

    /// Something happened to these blocks: they must be gone.
    pub(crate) fn forget(&mut self, blocks: impl IntoIterator<Item = SequenceHash>) {
        self.damaged.extend(blocks);
    }

    /// Holds what lies on the drives against what was said. `certain`: so many of the newest chains
    /// have not been evicted.
    pub(crate) fn hold_against(&self, there: &BTreeSet<SequenceHash>, certain: usize) {
        for seed in self.begun.iter().rev().take(certain) {
            let acked = self.acked.get(seed).copied().unwrap_or(0);
            let mut kept = hashes(*seed, CHAIN).into_iter().take(acked);
            let lost = kept.find(|hash| !self.damaged.contains(hash) && !there.contains(hash));
            assert_eq!(lost, None, "chain {seed}: a block was lost");
        }
        let gone = self.forgotten.iter().flat_map(|&seed| hashes(seed, CHAIN));
        let phantom = gone.chain(self.damaged.iter().copied()).find(|hash| there.contains(hash));
        assert_eq!(phantom, None, "a block is there that was forgotten or lost");
    }

    /// Opens the directory and looks at every block there ever was. `certain`: so many of the newest
    /// chains have not been evicted.
    pub(crate) fn check(&mut self, life: &Life, certain: usize) {
        let rig = life.setup().open();
        let newest: Vec<u32> = self.begun.iter().rev().take(certain).copied().collect();
        for (seed, &blocks) in self.acked.iter().filter(|(seed, _)| newest.contains(seed)) {
            let chain = hashes(*seed, CHAIN);
            let whole = chain.iter().take_while(|hash| !self.damaged.contains(hash)).count();
            let there = rig.manager.lookup(&chain).unwrap().count(Tier::Disk);
            self.lost += blocks.min(whole).saturating_sub(there);
        }
        for &seed in &self.begun {
            let chain = hashes(seed, CHAIN);
            let said = rig.manager.lookup(&chain).unwrap().len();
            if self.forgotten.contains(&seed) {
                self.phantom += said;
            }
            self.phantom +=
                chain[..said].iter().filter(|&hash| self.damaged.contains(hash)).count();
            // Compares every byte, and fails on a difference.
            let arrived = rig.get(&chain).blocks.len();
            assert_eq!(arrived, said, "chain {seed}: a block does not verify");
            self.found += arrived;
            rig.clear_memory();
        }
        let unborn = hashes(self.next + 1, CHAIN);
        self.phantom += rig.manager.lookup(&unborn).unwrap().len();
        let failures = &rig.edge(FROM_DISK).failures;
        assert!(failures.values().all(|&blocks| blocks == 0), "{failures:?}");
        rig.check();
        rig.manager.shutdown_blocking(LONG);
        drop(rig);
        check_files(life);
        assert_eq!((self.lost, self.phantom), (0, 0), "lost, phantom");
    }

    /// Says what a test has looked at.
    pub(crate) fn close(&self, rounds: u32) {
        assert!(self.found > 0);
        eprintln!("{rounds} rounds, {} blocks looked at, none lost, none wrong", self.found);
    }
}

/// No stray files.
pub(crate) fn check_files(life: &Life) {
    for dir in life.reachable() {
        let names = fs::read_dir(&dir).unwrap().map(|file| file.unwrap().file_name());
        let names: BTreeSet<String> = names.map(|name| name.into_string().unwrap()).collect();
        assert_eq!(names.len(), life.files(), "stray files in {}: {names:?}", dir.display());
    }
}
