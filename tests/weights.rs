//! Weights swapped in place: blocks of others are hidden at once, and found again when switched back.

#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "shared with tests that use more of it")]
#[path = "weights/gate.rs"]
mod gate;
#[allow(dead_code, reason = "shared with tests that use more of it")]
#[path = "disk_tier/rig.rs"]
mod rig;
#[path = "weights/versions.rs"]
mod versions;

mod weights {
    mod drives;
    mod model;
    mod races;
    mod switch;
}
