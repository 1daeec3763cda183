//! The disk tier from outside: what survives, what is refused, what a bad drive costs.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

#[path = "disk_tier/rig.rs"]
mod rig;

#[allow(dead_code, reason = "shared with tests that use more of it")]
#[path = "weights/gate.rs"]
mod gate;

mod disk_tier {
    mod damage;
    mod failures;
    mod hung;
    mod identity;
    mod memory;
    mod mending;
    mod modes;
    mod phases;
    mod processes;
    mod requests;
    mod restart;
    mod room;
    mod tools;
}
