//! Killed at any moment, a disk tier loses nothing that it has acknowledged; damaged afterwards, it
//! loses what was hit.
//!
//! A child of this program opens the directory, stores chains and says which it has acknowledged.
//! It is killed at a moment that nobody chose, opened again and looked through: every acknowledged
//! block that was not evicted is there, every byte of every block is right, nothing is found that
//! was never stored, and no stray file is left. Now and then there is a reset, and what was before
//! it never comes back.
//!
//! * `kill`: that alone, with both durabilities.
//! * `damage`: between the kill and the opening something breaks on the drive.
//! * `drives`: the tier lies on two drives, one of which dies.
//! * `full`: the drive is smaller than the tier.
//!
//! Rounds: 20, or as `DYNAMO_TEST_CRASH_ROUNDS` says.

#![allow(clippy::unwrap_used)]
#![allow(clippy::print_stdout, reason = "a skipped test says why")]
#![allow(clippy::print_stderr, reason = "a long run says what it has looked at")]

mod book;
mod child;
mod damage;
mod drives;
mod full;
mod kill;
#[allow(dead_code, reason = "shared with tests that use more of it")]
#[path = "../disk_tier/rig.rs"]
mod rig;
#[path = "../tmpfs/mod.rs"]
mod tmpfs;

use std::env;

/// Rounds of a test; the long run of some is shorter.
fn rounds(part: u32) -> u32 {
    let rounds = env::var("DYNAMO_TEST_CRASH_ROUNDS").ok();
    (rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(20) / part).max(1)
}

/// The same numbers in every run.
struct Random(u32);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // The low bits of such a generator are poor.
        u64::from(self.0 >> 8) % end
    }
}
