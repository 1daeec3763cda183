//! The process that is killed, and how it is told what to do.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use dynamo_llm::block_manager::{
    config::{Capacity, DiskDurability, DriveConfig},
    io::{
        OsVolume,
        fault::{FaultVolume, Faults},
    },
    storage::disk::inspect,
};

use crate::{
    Random,
    book::Book,
    rig::{Setup, hashes},
};

/// Blocks of a chain.
pub(crate) const CHAIN: usize = 4;

/// A directory and how it is used.
#[derive(Clone)]
pub(crate) struct Life {
    pub(crate) dir: PathBuf,
    pub(crate) durability: DiskDurability,
    /// The tier is spread over so many directories in `dir`; one: it is `dir` itself.
    pub(crate) drives: usize,
    /// Room for so many chains on each drive; more are stored, so some are evicted.
    pub(crate) chains: usize,
    /// The drive reserves no room.
    pub(crate) sparse: bool,
    /// The drive is smaller than the tier: what finds no room there is a miss.
    pub(crate) full: bool,
}

impl Life {
    pub(crate) fn new(dir: &Path) -> Self {
        let durability = DiskDurability::Process;
        Self { dir: dir.to_owned(), durability, drives: 1, chains: 24, sparse: false, full: false }
    }

    /// The directories of the tier.
    pub(crate) fn dirs(&self) -> Vec<PathBuf> {
        if self.drives == 1 {
            return vec![self.dir.clone()];
        }
        (0..self.drives).map(|number| self.dir.join(format!("drive{number}"))).collect()
    }

    /// Those that can be opened.
    pub(crate) fn reachable(&self) -> impl Iterator<Item = PathBuf> {
        self.dirs().into_iter().filter(|dir| dir.is_dir())
    }

    pub(crate) fn setup(&self) -> Setup {
        let blocks = self.chains * CHAIN;
        let setup = if self.drives == 1 {
            Setup::new(0, blocks).dir(&self.dir)
        } else {
            let drive =
                |dir: &PathBuf| DriveConfig::new(dir.to_str().unwrap(), Capacity::Blocks(blocks));
            Setup::new(0, 0).with(|config| {
                config.disk.capacity = Capacity::Default;
                config.disk.drives = self.dirs().iter().map(drive).collect();
            })
        };
        let setup = setup.manual().with(|config| {
            config.disk.durability = self.durability;
            config.device.capacity = Capacity::Blocks(8 * CHAIN);
            config.transfer.threads = Some(1);
        });
        if !self.sparse {
            return setup;
        }
        let volume =
            FaultVolume::new(Arc::new(OsVolume::new(&self.dir, true).unwrap()), Faults::none(0));
        volume.set_abilities(false, true);
        setup.volume(Arc::new(volume))
    }

    /// Files that there are on a drive, no more: superblock, data and table, and beside a real
    /// directory its lock.
    pub(crate) fn files(&self) -> usize {
        if self.sparse { 3 } else { 4 }
    }

    /// Lets a child store from where the book ends, and kills it; the book has what it said.
    pub(crate) fn live(&self, book: &mut Book, random: &mut Random) {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "child::the_child", "--nocapture", "--test-threads=1"])
            .env("DYNAMO_TEST_CRASH_CHILD", &self.dir)
            .env("DYNAMO_TEST_CRASH_FIRST", book.next.to_string())
            .env("DYNAMO_TEST_CRASH_LIFE", self.tell())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // After so many lines, and some time that falls anywhere in a store.
        let after = 1 + random.below(if self.full { 200 } else { 60 });
        let wait = random.below(2000);
        for _ in 0..after {
            match lines.next() {
                Some(Ok(line)) => book.listen(&line),
                _ => panic!("the child ended by itself"),
            }
        }
        // Whoever looks meanwhile, without owning it, finds a directory in order.
        for dir in self.reachable() {
            assert_eq!(inspect(&dir).unwrap().sets.len(), 1);
        }
        // The moment of the kill is what is random here; nothing waits for it.
        thread::park_timeout(Duration::from_micros(wait));
        child.kill().unwrap();
        lines.map_while(Result::ok).for_each(|line| book.listen(&line));
        child.wait().unwrap();
    }

    fn tell(&self) -> String {
        let Self { durability, drives, chains, sparse, full, .. } = self;
        format!("{} {drives} {chains} {sparse} {full}", durability.name())
    }

    fn told(dir: PathBuf, told: &str) -> Self {
        let words: Vec<&str> = told.split(' ').collect();
        Self {
            dir,
            durability: words[0].parse().unwrap(),
            drives: words[1].parse().unwrap(),
            chains: words[2].parse().unwrap(),
            sparse: words[3].parse().unwrap(),
            full: words[4].parse().unwrap(),
        }
    }
}

/// The body of the child; does nothing in a run of the tests.
///
/// It says `storing` before it stores a chain, and `ack` afterwards with the blocks of the chain that
/// are acknowledged from the first on; `resetting` and `reset` likewise.
#[test]
fn the_child() {
    let Some(dir) = env::var_os("DYNAMO_TEST_CRASH_CHILD") else { return };
    let first: u32 = env::var("DYNAMO_TEST_CRASH_FIRST").unwrap().parse().unwrap();
    let life = Life::told(dir.into(), &env::var("DYNAMO_TEST_CRASH_LIFE").unwrap());
    let rig = life.setup().open();
    let mut out = std::io::stdout();
    // The test runner has begun a line of its own.
    out.write_all(b"\n").unwrap();
    let mut say = |word: &str, seed: u32, blocks: usize| {
        // One write a line: a kill leaves whole lines or none.
        out.write_all(format!("{word} {seed} {blocks}\n").as_bytes()).unwrap();
        out.flush().unwrap();
    };
    // Rarely where the tier is to fill the drive first.
    let to_reset = if life.full { 401 } else { 41 };
    for seed in first.. {
        if seed % to_reset == to_reset - 1 {
            say("resetting", seed, 0);
            rig.manager.reset_blocking().unwrap();
            say("reset", seed, 0);
        }
        say("storing", seed, 0);
        let results = rig.store(&hashes(seed, CHAIN));
        let acknowledged = results.iter().take_while(|result| result.is_ok()).count();
        assert!(life.full || acknowledged == CHAIN, "{results:?}");
        say("ack", seed, acknowledged);
    }
}
