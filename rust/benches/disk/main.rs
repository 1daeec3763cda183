//! The disk tier beside fio.
//!
//! Whole blocks through a manager (sealed, recorded, verified, registered) and bare slots through
//! the I/O engine, written, read, and both at once; single loads while stores run at full rate beside
//! the same without stores; opening a directory with a million records, and starting a manager over
//! it.
//!
//! # What is compared
//!
//! Both sides move the same bytes in the same pieces at the same depth, past the page cache, to files
//! of the same size that have been written before, in the same folder (`DYNAMO_BENCH_DIR`, else the
//! build folder), in turn within one run. Of fio counts the bandwidth that it measures itself, without
//! its start, and its engine is the one that is faster here in a short trial (see [`fio`]). Where there
//! is no fio a plain loop of direct reads and writes on as many threads takes its place. Each line
//! says which it was.
//!
//! Memory lies in huge pages on both sides where the kernel has them. It decides: a drive takes a
//! piece of scattered small pages as hundreds of segments, or cut in two, at half the rate or less,
//! and how scattered they are is luck.
#![allow(missing_docs, clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

#[path = "../figure/mod.rs"]
mod figure;
mod fio;
mod memory;
mod plain;
mod reference;
mod restart;
mod slots;
mod tier;

use std::path::PathBuf;
use std::time::Duration;

const MIB: usize = 1 << 20;
/// Requests at the drive at once, each way, on both sides.
const DEPTH: usize = 8;
/// Bytes of a file, and what one pass over it moves.
const FILE: usize = 512 * MIB;
/// Passes of one measured call: long beside the milliseconds that fio counts in, and beside the start
/// and the end of a pass, at which the drive is not full.
const PASSES: usize = 2;

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Write,
    Read,
    /// As many bytes each way, both at once.
    Mixed,
}

impl Way {
    /// Writing comes first: it leaves what can be read.
    const ALL: [Self; 3] = [Self::Write, Self::Read, Self::Mixed];

    fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Mixed => "mixed",
        }
    }

    /// Bytes that one pass moves.
    fn bytes(self) -> f64 {
        (if self == Self::Mixed { 2 * FILE } else { FILE }) as f64
    }

    /// Bytes per second of `PASSES` passes, each of which says how long it took.
    fn rate(self, pass: impl FnMut() -> Duration) -> f64 {
        let took: Duration = std::iter::repeat_with(pass).take(PASSES).sum();
        PASSES as f64 * self.bytes() / took.as_secs_f64()
    }
}

fn main() {
    if !figure::wanted() {
        return;
    }
    let base = std::env::var_os("DYNAMO_BENCH_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let folder = tempfile::tempdir_in(base).unwrap();
    // Names after `--` choose; none means all.
    let names: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let chosen = |name: &str| names.is_empty() || names.iter().any(|one| one == name);
    for mib in [1, 2] {
        if chosen("tier") || chosen("slots") {
            let mut reference = reference::Reference::new(folder.path(), mib * MIB);
            if chosen("tier") {
                tier::rates(folder.path(), mib, &mut reference);
            }
            if chosen("slots") {
                slots::rates(folder.path(), mib, &mut reference);
            }
        }
    }
    if chosen("tail") {
        slots::tail(folder.path());
    }
    if chosen("restart") {
        restart::records(folder.path());
        restart::manager(folder.path());
    }
}
