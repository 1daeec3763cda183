//! Moving blocks: plans as data, engines that execute them.
//!
//! A [`TransferPlan`] says which slots of one place go to which slots of another. A
//! [`TransferEngine`] executes it off the caller's thread, sums every tile in the same pass, and
//! reports each block exactly once; nobody waits inside an engine. What a block's sums mean (seal
//! it, verify it, publish it) is for the floor above: an engine moves bytes and tells the truth
//! about them.
//!
//! Memory under a copy is never somebody else's. A plan is made by whoever keeps its slots, which is
//! `unsafe` to promise, and an engine touches them only until it reports, which is `unsafe` to
//! implement; everything between the two is safe.
//!
//! A [`Transfer`] is the caller's end: awaitable, waitable, cancellable, with a deadline and a
//! result *per block*. The slots on both sides are owned by the job until its last report, also
//! after cancel, deadline or drop.
//!
//! Engines here: [`HostEngine`] (threads that copy between mapped memories), [`disk::DiskEngine`]
//! (between memory and a drive) and [`FaultEngine`] (a decorator that makes any engine misbehave,
//! by seed).
#![allow(clippy::result_large_err, reason = "a refusal hands the job back")]

mod claims;
pub(crate) mod disk;
mod engine;
mod error;
mod fault;
mod handle;
mod host;
pub mod kernel;
mod memory;
mod ordered;
mod place;
mod plan;
mod shield;
mod tiles;
mod timer;

pub use engine::{Job, Reports, Ticket, TransferEngine};
pub use error::TransferError;
pub use fault::{Corruption, FaultEngine, Faults};
pub use handle::{Arrival, BlockResult, Transfer};
pub(crate) use handle::{TransferSink, transfer};
pub use host::HostEngine;
pub use memory::BlockMemory;
pub(crate) use ordered::{InOrder, Report};
pub use place::BlockPlace;
pub use plan::{BlockLabel, BlockPair, TransferPlan};
pub(crate) use tiles::sum_block;
pub(crate) use timer::DeadlineTimer;
