//! The disk tier from outside: what survives, what is refused, what a bad drive costs.

#![allow(clippy::unwrap_used)]

#[path = "disk_tier/rig.rs"]
mod rig;

mod disk_tier {
    mod failures;
    mod identity;
    mod restart;
}
