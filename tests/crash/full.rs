//! The drive is smaller than the tier: a small tmpfs, with room reserved and without.
//!
//! Stores beyond the room fail as misses, until old blocks make way; what was acknowledged stays.

use std::path::Path;

use crate::{Random, book::Book, child::Life, rounds, tmpfs};

/// Bytes of the tmpfs: some 230 slots.
const SIZE: &str = "2m";

fn run(dir: &Path, sparse: bool) {
    let rounds = rounds(2);
    let life = Life { chains: 80, sparse, full: true, ..Life::new(dir) };
    let (mut book, mut random) = (Book::new(), Random(0x5bd1_e995));
    for _ in 0..rounds {
        life.live(&mut book, &mut random);
        // Those have room for certain, whatever else found none.
        book.check(&life, 30);
    }
    assert!(book.refused > 0, "the drive was never full");
    book.close(rounds);
}

#[test]
fn a_full_drive_that_reserves_room_keeps_what_was_acknowledged() {
    let name = "full::a_full_drive_that_reserves_room_keeps_what_was_acknowledged";
    if let Some(dir) = tmpfs::inside(name, SIZE) {
        run(&dir, false);
    }
}

#[test]
fn a_full_drive_with_sparse_files_keeps_what_was_acknowledged() {
    let name = "full::a_full_drive_with_sparse_files_keeps_what_was_acknowledged";
    if let Some(dir) = tmpfs::inside(name, SIZE) {
        run(&dir, true);
    }
}
