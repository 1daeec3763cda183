//! Hands that do damage, and eyes that look.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread,
    time::Instant,
};

use crate::rig::{LONG, Rig};

/// Bytes of a slot of the blocks here: payload and sums, a page each.
pub(super) const SLOT: u64 = 8192;
/// The files of the first geometry of a new directory.
pub(super) const DATA: &str = "dynamo-00000001.data";
pub(super) const TABLE: &str = "dynamo-00000001.table";

pub(super) fn file(dir: &Path, ending: &str) -> PathBuf {
    let mut files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    files.find(|path| path.to_string_lossy().ends_with(ending)).unwrap()
}

pub(super) fn change(path: &Path, offset: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

pub(super) fn eventually(what: &str, mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < LONG, "waited in vain until {what}");
        thread::yield_now();
    }
}

pub(super) fn quarantined(rig: &Rig) -> u64 {
    rig.manager.disk().unwrap().status().quarantined
}

/// The slot of the `position`th block by order of storing.
pub(super) fn slot_of(dir: &Path, position: usize) -> u64 {
    let mut slots = Vec::new();
    dynamo_llm::block_manager::storage::disk::walk(dir, |slot, _| {
        slots.push((slot.block.sequence, u64::from(slot.block.slot.slot)));
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    slots.sort_unstable();
    slots[position].1
}

/// Says which seed it was when a test fails.
pub(super) struct Seed(pub(super) u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}
