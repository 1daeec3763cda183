//! Killed, and damaged before it is opened again: what was hit is gone, and nothing else.

use std::{
    collections::HashMap,
    fs::{self, File},
    ops::{ControlFlow, Range},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use dynamo_llm::block_manager::{SequenceHash, storage::disk::walk};

use crate::{
    Random,
    book::{Book, check_files},
    child::{CHAIN, Life},
    rig::{FROM_DISK, LONG, hashes},
    rounds,
};

/// Bytes of a page, which payload and sums are padded to, of a record, and of a copy of the
/// superblock.
const PAGE: u64 = 4096;
const RECORD: u64 = 256;
const COPY: u64 = 64 << 10;

/// A block as its record tells, before anything happens to it.
pub(crate) struct There {
    pub(crate) hash: SequenceHash,
    slot: u64,
    /// Bytes of its payload and of its sums.
    payload: u64,
    sums: u64,
}

/// What was done.
#[derive(Debug, PartialEq, Eq)]
enum Harm {
    /// Slots from this one on are gone with the data file's end.
    Cut { from: u64 },
    /// A byte of this slot, counted from its start, has changed.
    Flipped { slot: u64, at: u64 },
    /// Half of this slot's record is something else.
    Torn { slot: u64 },
    /// One copy of the superblock is something else.
    OneCopy,
    /// Both copies are.
    BothCopies,
}

pub(crate) fn there(dir: &Path) -> Vec<There> {
    let mut there = Vec::new();
    walk(dir, |walked, _| {
        let (payload, sums) = walked.read.as_ref().unwrap();
        there.push(There {
            hash: SequenceHash::from_le_bytes(walked.block.record.key),
            slot: walked.block.slot.slot.into(),
            payload: payload.len() as u64,
            sums: sums.len() as u64 * 8,
        });
        ControlFlow::Continue(())
    })
    .unwrap();
    there
}

fn path(dir: &Path, ending: &str) -> PathBuf {
    let mut files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    files.find(|path| path.to_string_lossy().ends_with(ending)).unwrap()
}

fn file(dir: &Path, ending: &str) -> File {
    File::options().read(true).write(true).open(path(dir, ending)).unwrap()
}

/// Writes other bytes over a range.
fn overwrite(file: &File, range: Range<u64>) {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    file.read_exact_at(&mut bytes, range.start).unwrap();
    for byte in &mut bytes {
        *byte ^= 0xa5;
    }
    file.write_all_at(&bytes, range.start).unwrap();
}

/// Does harm of the `kind`th kind to a directory with these blocks.
fn harm(dir: &Path, there: &[There], kind: u32, random: &mut Random) -> Harm {
    let block = &there[random.below(there.len() as u64) as usize];
    let slot = block.slot;
    let slot_bytes = block.payload.next_multiple_of(PAGE) + block.sums.next_multiple_of(PAGE);
    match kind {
        0 => {
            let at = slot * slot_bytes + random.below(slot_bytes);
            file(dir, ".data").set_len(at).unwrap();
            Harm::Cut { from: slot }
        }
        1 => {
            let at = random.below(slot_bytes);
            let start = slot * slot_bytes + at;
            overwrite(&file(dir, ".data"), start..start + 1);
            Harm::Flipped { slot, at }
        }
        2 => {
            let start = slot * RECORD + random.below(2) * RECORD / 2;
            overwrite(&file(dir, ".table"), start..start + RECORD / 2);
            Harm::Torn { slot }
        }
        3 => {
            let start = random.below(2) * COPY + random.below(COPY - 64);
            overwrite(&file(dir, ".super"), start..start + 64);
            Harm::OneCopy
        }
        _ => {
            for copy in [0, COPY] {
                let start = copy + random.below(COPY - 64);
                overwrite(&file(dir, ".super"), start..start + 64);
            }
            Harm::BothCopies
        }
    }
}

impl Harm {
    /// Whether a block is not to be served any more.
    fn costs(&self, block: &There) -> bool {
        match *self {
            Self::Cut { from } => block.slot >= from,
            // A load sums the payload anew and asks the record: what lies behind it is not needed.
            Self::Flipped { slot, at } => block.slot == slot && at < block.payload,
            Self::Torn { slot } => block.slot == slot,
            Self::OneCopy => false,
            Self::BothCopies => true,
        }
    }

    /// Whether that is found out when the directory is opened.
    fn is_seen_at_once(&self) -> bool {
        !matches!(self, Self::Flipped { .. })
    }
}

/// Opens the damaged directory: every block that was there and not hit is served, no other is.
fn check(book: &Book, life: &Life, there: &[There], harm: &Harm) {
    let rig = life.setup().open();
    let said: Vec<String> = rig.manager.findings().iter().map(ToString::to_string).collect();
    let lost = said.iter().any(|said| said.contains("superblock was lost"));
    assert_eq!(lost, *harm == Harm::BothCopies, "{said:?}");
    let intact: HashMap<_, _> =
        there.iter().map(|block| (block.hash, !harm.costs(block))).collect();
    let mut hit = 0;
    // In the order of storing, which is then that of use.
    for hash in book.begun.iter().flat_map(|&seed| hashes(seed, CHAIN)) {
        let said = rig.manager.lookup(&[hash]).unwrap().len();
        // Compares every byte.
        let arrived = rig.get(&[hash]).blocks.len();
        rig.clear_memory();
        let intact = intact.get(&hash).copied();
        assert_eq!(arrived == 1, intact == Some(true), "{harm:?} {hash}");
        let candidate = intact == Some(false) && !harm.is_seen_at_once();
        assert_eq!(said == 1, intact == Some(true) || candidate, "{harm:?} {hash}");
        hit += u64::from(candidate);
        // A verdict that proved wrong is withdrawn.
        assert_eq!(rig.manager.lookup(&[hash]).unwrap().len(), arrived);
    }
    assert_eq!(rig.edge(FROM_DISK).failures["verification"], hit);
    rig.check();
    rig.manager.shutdown_blocking(LONG);
    drop(rig);
    check_files(life);
}

#[test]
fn damage_after_a_kill_costs_what_it_hit_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let life = Life::new(dir.path());
    let (mut book, mut random) = (Book::new(), Random(0x85eb_ca6b));
    let rounds = rounds(2);
    for round in 0..rounds {
        life.live(&mut book, &mut random);
        book.check(&life, life.chains - 3);
        let there = there(dir.path());
        if there.is_empty() {
            continue;
        }
        let harm = harm(dir.path(), &there, round % 5, &mut random);
        check(&book, &life, &there, &harm);
        book.forget(there.iter().filter(|block| harm.costs(block)).map(|block| block.hash));
        // And so it stays.
        book.check(&life, life.chains - 3);
    }
    book.close(rounds);
}
