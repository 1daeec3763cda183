//! Two drives, one of which is dead when the tier is opened again: that costs its own blocks, and
//! only until it comes back as it was.
//!
//! What is to be found then follows from the directories as the killed process left them: the blocks
//! of every drive that can be opened, but for one that has not heard of the latest reset, of which
//! there are none.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
};

use dynamo_llm::block_manager::{
    SequenceHash,
    config::Severity,
    io::{
        OsVolume,
        fault::{FaultVolume, Faults},
    },
    storage::disk::inspect,
};

use crate::{
    Random,
    book::{Book, check_files},
    child::{CHAIN, Life},
    damage::there,
    rig::{FROM_DISK, LONG, Setup, hashes},
    rounds,
};

/// How a drive is dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Death {
    /// Its directory is gone.
    Removed,
    /// Its files are there, and empty.
    Emptied,
    /// Every operation fails, for as long as one process lives.
    Failing,
    /// It is not mounted, and something else is in its place; the tier lives on without it, and is
    /// reset meanwhile or not.
    Away { reset: bool },
}

impl Death {
    const ALL: [Self; 5] = [
        Self::Removed,
        Self::Emptied,
        Self::Failing,
        Self::Away { reset: false },
        Self::Away { reset: true },
    ];

    /// Whether the drive cannot be opened; else it begins anew.
    fn shuts_out(self) -> bool {
        matches!(self, Self::Failing | Self::Away { .. })
    }
}

/// What lies in a directory.
struct Found {
    dir: PathBuf,
    generation: u64,
    blocks: BTreeSet<SequenceHash>,
}

impl Found {
    /// As the books on the drive say, which nobody has open.
    fn look(dir: PathBuf) -> Self {
        let blocks = there(&dir).iter().map(|block| block.hash).collect();
        Self { generation: inspect(&dir).unwrap().generation, blocks, dir }
    }
}

/// All that a tier over these directories serves.
fn served<'a>(found: impl IntoIterator<Item = &'a Found> + Clone) -> BTreeSet<SequenceHash> {
    let latest = found.clone().into_iter().map(|drive| drive.generation).max();
    let heard = found.into_iter().filter(|drive| Some(drive.generation) == latest);
    heard.flat_map(|drive| drive.blocks.iter().copied()).collect()
}

/// The place where a directory waits while it is away.
fn elsewhere(dir: &Path) -> PathBuf {
    dir.with_extension("away")
}

/// Opens the tier, of which exactly these blocks are served, and stores one chain more. `without`:
/// the drive that is said to be left out.
fn check(
    book: &mut Book,
    life: &Life,
    setup: &Setup,
    there: &BTreeSet<SequenceHash>,
    without: Option<&Path>,
) {
    let rig = setup.open();
    let findings = rig.manager.findings().iter();
    let left_out: Vec<&str> = findings
        .filter(|finding| finding.severity == Severity::Warning && finding.field == "disk.drives")
        .map(|finding| finding.value.as_str())
        .collect();
    assert_eq!(left_out, Vec::from_iter(without.and_then(Path::to_str)));
    // In the order of storing, which is then that of use.
    for hash in book.begun.iter().flat_map(|&seed| hashes(seed, CHAIN)) {
        let said = rig.manager.lookup(&[hash]).unwrap().len();
        // Compares every byte.
        let arrived = rig.get(&[hash]).blocks.len();
        rig.clear_memory();
        let expected = usize::from(there.contains(&hash));
        assert_eq!((said, arrived), (expected, expected), "{hash}, without {without:?}");
        book.found += arrived;
    }
    assert!(rig.manager.lookup(&hashes(book.next + 1, CHAIN)).unwrap().is_empty(), "never stored");
    let failures = &rig.edge(FROM_DISK).failures;
    assert!(failures.values().all(|&blocks| blocks == 0), "{failures:?}");

    let seed = book.next;
    book.listen(&format!("storing {seed} 0"));
    let results = rig.store(&hashes(seed, CHAIN));
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    book.listen(&format!("ack {seed} {CHAIN}"));
    rig.check();
    rig.manager.shutdown_blocking(LONG);
    drop(rig);
    check_files(life);
}

/// One of the two drives dies after a kill, and comes back if it can.
fn round(book: &mut Book, life: &Life, death: Death, random: &mut Random) {
    let drives: Vec<Found> = life.dirs().into_iter().map(Found::look).collect();
    // As for one drive, each having room for all.
    let certain = life.chains - 3;
    book.hold_against(&served(&drives), certain);
    let victim = random.below(2) as usize;
    let (dead, living) = (&drives[victim], &drives[1 - victim]);
    let mut setup = life.setup();
    match death {
        Death::Removed => fs::remove_dir_all(&dead.dir).unwrap(),
        Death::Emptied => {
            for file in fs::read_dir(&dead.dir).unwrap() {
                File::options().write(true).open(file.unwrap().path()).unwrap().set_len(0).unwrap();
            }
        }
        Death::Failing => {
            let volume = Arc::new(OsVolume::new(&dead.dir, true).unwrap());
            let faults = Faults { errors: 1.0, ..Faults::none(1) };
            setup = setup.volume(Arc::new(FaultVolume::new(volume, faults)));
        }
        Death::Away { .. } => {
            fs::rename(&dead.dir, elsewhere(&dead.dir)).unwrap();
            fs::write(&dead.dir, "not a directory").unwrap();
        }
    }
    let without = death.shuts_out().then_some(&*dead.dir);
    check(book, life, &setup, &served([living]), without);
    if let Death::Away { reset } = death {
        if reset {
            let rig = setup.open();
            rig.manager.reset_blocking().unwrap();
            book.listen(&format!("resetting {} 0", book.next));
            book.listen(&format!("reset {} 0", book.next));
        }
        // Killed once more meanwhile, now and then in the middle of a reset of its own.
        life.live(book, random);
        let living = Found::look(living.dir.clone());
        check(book, life, &setup, &served([&living]), without);
        assert_eq!(fs::read(&dead.dir).unwrap(), b"not a directory");
        fs::remove_file(&dead.dir).unwrap();
        fs::rename(elsewhere(&dead.dir), &dead.dir).unwrap();
    }
    let now: Vec<Found> = life.dirs().into_iter().map(Found::look).collect();
    let there = served(&now);
    if death == (Death::Away { reset: true }) {
        assert!(dead.blocks.is_disjoint(&there));
    }
    // Gone for good: what lay on a drive that begins anew, and on one that missed a reset.
    let anew = (!death.shuts_out()).then_some(dead);
    let latest = now.iter().map(|drive| drive.generation).max();
    let behind = now.iter().filter(|drive| Some(drive.generation) < latest);
    let gone = anew.into_iter().chain(behind).flat_map(|drive| &drive.blocks);
    book.forget(gone.filter(|&hash| !there.contains(hash)).copied());
    book.hold_against(&there, certain);
    check(book, life, &life.setup(), &there, None);
}

#[test]
fn a_drive_that_dies_after_a_kill_costs_its_blocks_and_brings_them_back_unless_there_was_a_reset() {
    let dir = tempfile::tempdir().unwrap();
    let life = Life { drives: 2, ..Life::new(dir.path()) };
    let (mut book, mut random) = (Book::new(), Random(0xc2b2_ae35));
    let rounds = rounds(2);
    for number in 0..rounds {
        life.live(&mut book, &mut random);
        round(&mut book, &life, Death::ALL[number as usize % Death::ALL.len()], &mut random);
    }
    book.close(rounds);
}
