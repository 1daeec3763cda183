//! A disk tier on several drives: where blocks go, what a drive that dies costs, and how much is
//! written.
#![allow(missing_docs, clippy::unwrap_used)]

mod budget;
mod death;
mod mending;
mod resets;
#[path = "../disk_tier/rig.rs"]
#[allow(dead_code, reason = "shared with tests that need more of it")]
mod rig;
mod several;
mod spread;
