//! Positioned I/O: exactly one answer, lanes apart, deadlines, sick drives, direct I/O and its
//! absence, partial transfers.
#![allow(clippy::unwrap_used)]

mod engine;
mod fault;
mod files;
mod rig;
