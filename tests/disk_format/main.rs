//! The directory of blocks on a drive: what is found again after every kind of end, what is refused,
//! and that the limit is one.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod crash_model;
mod damage;
mod looking;
mod owners;
mod rig;
mod room;
mod rules;
#[path = "../tmpfs/mod.rs"]
mod tmpfs;
