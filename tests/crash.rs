//! Killed at any moment, a disk tier loses nothing that it has acknowledged.
//!
//! A child of this program opens the directory, stores chains and says which it has acknowledged.
//! It is killed at a moment that nobody chose, opened again and looked through: every acknowledged
//! block that was not evicted is there, every byte of every block is right, nothing is found that
//! was never stored, and no stray file is left. Now and then there is a reset, and what was before
//! it never comes back.
//!
//! Rounds: 20, or as `DYNAMO_TEST_CRASH_ROUNDS` says. Run with arguments it is the child.

#![allow(clippy::unwrap_used)]
#![allow(clippy::print_stderr, reason = "a long run says what it has looked at")]

#[allow(dead_code, reason = "shared with tests that use more of it")]
#[path = "disk_tier/rig.rs"]
mod rig;

use std::{
    collections::BTreeSet,
    env, fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use dynamo_llm::block_manager::{
    Tier,
    config::{Capacity, DiskDurability},
};
use rig::{LONG, Setup, hashes};

/// Blocks of a chain.
const CHAIN: usize = 4;
/// Room for so many chains; more are stored, so some are evicted.
const CHAINS: usize = 24;

fn setup(dir: &Path, durability: DiskDurability) -> Setup {
    let setup = Setup::new(0, CHAINS * CHAIN).dir(dir).manual();
    setup.with(|config| {
        config.disk.durability = durability;
        config.device.capacity = Capacity::Blocks(8 * CHAIN);
        config.transfer.threads = Some(1);
    })
}

/// What a child says: `stored` before it stores, `ack` afterwards; `resetting`, `reset` likewise.
fn child(dir: &Path, durability: DiskDurability, first: u32) -> ! {
    let rig = setup(dir, durability).open();
    let mut out = std::io::stdout();
    // The test runner has begun a line of its own.
    out.write_all(b"\n").unwrap();
    let mut say = |word: &str, seed: u32| {
        // One write a line: a kill leaves whole lines or none.
        out.write_all(format!("{word} {seed}\n").as_bytes()).unwrap();
        out.flush().unwrap();
    };
    for seed in first.. {
        if seed % 41 == 40 {
            say("resetting", seed);
            rig.manager.reset_blocking().unwrap();
            say("reset", seed);
        }
        say("storing", seed);
        let results = rig.store(&hashes(seed, CHAIN));
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        say("ack", seed);
    }
    unreachable!("there are more seeds than time")
}

/// What the checker knows.
#[derive(Default)]
struct Book {
    /// Acknowledged, oldest first, and not forgotten since.
    acked: Vec<u32>,
    /// Begun ever.
    begun: BTreeSet<u32>,
    /// Forgotten for good.
    forgotten: BTreeSet<u32>,
    next: u32,
    lost: usize,
    phantom: usize,
    found: usize,
}

impl Book {
    fn listen(&mut self, line: &str) {
        let Some((word, seed)) = line.split_once(' ') else { return };
        let Ok(seed) = seed.parse::<u32>() else { return };
        match word {
            "storing" => drop(self.begun.insert(seed)),
            "ack" => self.acked.push(seed),
            // From here on they may be gone; from the answer on they must be.
            "resetting" => self.acked.clear(),
            "reset" => self.forgotten.extend(&self.begun),
            _ => {}
        }
        self.next = self.next.max(seed + 1);
    }

    fn check(&mut self, dir: &Path, durability: DiskDurability) {
        let rig = setup(dir, durability).open();
        // The newest chains fit for certain, those that were not finished counted as well; of two
        // neighbours the order of use may be the other one.
        let newest: Vec<u32> = self.begun.iter().rev().take(CHAINS - 3).copied().collect();
        for &seed in self.acked.iter().filter(|seed| newest.contains(seed)) {
            let there = rig.manager.lookup(&hashes(seed, CHAIN)).unwrap().count(Tier::Disk);
            self.lost += CHAIN - there;
        }
        for &seed in &self.begun {
            let chain = hashes(seed, CHAIN);
            let said = rig.manager.lookup(&chain).unwrap().len();
            if self.forgotten.contains(&seed) {
                self.phantom += said;
            }
            // Compares every byte, and fails on a difference.
            let arrived = rig.get(&chain).blocks.len();
            assert_eq!(arrived, said, "chain {seed}: a block does not verify");
            self.found += arrived;
            rig.clear_memory();
        }
        let unborn = hashes(self.next + 1, CHAIN);
        self.phantom += rig.manager.lookup(&unborn).unwrap().len();
        let failures = &rig.edge(rig::FROM_DISK).failures;
        assert!(failures.values().all(|&blocks| blocks == 0), "{failures:?}");
        rig.check();
        rig.manager.shutdown_blocking(LONG);
        let names = fs::read_dir(dir).unwrap().map(|file| file.unwrap().file_name());
        let names: BTreeSet<String> = names.map(|name| name.into_string().unwrap()).collect();
        assert_eq!(names.len(), 4, "stray files: {names:?}");
    }
}

fn run(rounds: u32, durability: DiskDurability) {
    let dir = tempfile::tempdir().unwrap();
    let mut book = Book { next: 1, ..Book::default() };
    let mut random = 0x9e37_79b9_u32;
    for round in 0..rounds {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "the_child", "--nocapture", "--test-threads=1"])
            .env("DYNAMO_TEST_CRASH_CHILD", dir.path())
            .env("DYNAMO_TEST_CRASH_FIRST", book.next.to_string())
            .env("DYNAMO_TEST_CRASH_DURABILITY", durability.name())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // After so many lines, and some time that falls anywhere in a store.
        let (after, wait) = (1 + (random >> 24) % 60, u64::from((random >> 8) % 2000));
        for _ in 0..after {
            match lines.next() {
                Some(Ok(line)) => book.listen(&line),
                _ => panic!("round {round}: the child ended by itself"),
            }
        }
        // The moment of the kill is what is random here; nothing waits for it.
        thread::park_timeout(Duration::from_micros(wait));
        child.kill().unwrap();
        lines.map_while(Result::ok).for_each(|line| book.listen(&line));
        child.wait().unwrap();
        book.check(dir.path(), durability);
        assert_eq!((book.lost, book.phantom), (0, 0), "round {round}: lost, phantom");
    }
    assert!(book.found > 0);
    eprintln!("{rounds} rounds, {} blocks looked at, none lost, none wrong", book.found);
}

fn rounds() -> u32 {
    let rounds = env::var("DYNAMO_TEST_CRASH_ROUNDS").ok();
    rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(20)
}

#[test]
fn a_killed_process_loses_no_acknowledged_block() {
    run(rounds(), DiskDurability::Process);
}

#[test]
fn nor_with_durability_against_power_loss() {
    run(rounds() / 4, DiskDurability::Power);
}

/// The body of the child; does nothing in a run of the tests.
#[test]
fn the_child() {
    let Some(dir) = env::var_os("DYNAMO_TEST_CRASH_CHILD") else { return };
    let first = env::var("DYNAMO_TEST_CRASH_FIRST").unwrap().parse().unwrap();
    let durability = env::var("DYNAMO_TEST_CRASH_DURABILITY").unwrap().parse().unwrap();
    child(Path::new(&dir), durability, first);
}
