//! Positioned I/O on files: engines, buffers, volumes, and what can go wrong.
//!
//! * An [`IoEngine`] takes an [`IoRequest`] with the buffers it needs and gives them back in its one
//!   callback. Nothing that a caller does (giving up, cancelling, dropping the engine) frees memory
//!   that the kernel may still touch: a request under way keeps its buffers until the kernel is done.
//! * An [`IoFile`] is read and written at offsets; a [`Volume`] is a folder of such files. There is
//!   the real one ([`OsVolume`]), one in memory that can lose what was not synced
//!   ([`fault::MemoryVolume`]), and a decorator that misbehaves ([`fault::FaultVolume`]).
//! * An [`IoBuffer`] is an aligned buffer of ours or memory that somebody lends for the request.
//!
//! # What holds
//!
//! * Each accepted request is answered exactly once, on a thread of its engine; a refused one comes
//!   back from `submit`, with its buffers, and is never answered.
//! * Loads and stores have queues, limits, threads and health of their own: neither waits for the
//!   other.
//! * A request that has not begun by its deadline never begins.
//! * A read that succeeded filled all its bytes; a write that succeeded gave all its bytes to the
//!   kernel. Partial transfers and interruptions are carried on, or reported as such.
//! * After a run of failed or stuck operations a lane is sick: it refuses, at once, until a request
//!   let through on trial comes back well ([`Health`]).
//!
//! What it is not: it knows no blocks, keys or tiers, it retries nothing that a drive refused, and it
//! promises nothing about durability but what [`IoFile::sync_data`] says.
//!
//! # Costs
//!
//! Per request two short locks and one system call: a few microseconds, beside some hundred that a
//! block of a MiB takes. One engine serves one drive, so that a hung one holds up no other.

mod buffer;
mod clock;
mod engine;
mod error;
pub mod fault;
mod file;
mod health;
mod os;
mod psync;
mod staging;
mod volume;

pub use buffer::{AlignedBuffer, IO_ALIGNMENT, IoBuffer, IoMemory};
pub use clock::{Clock, ManualClock, SystemClock};
pub use engine::{IoDone, IoEngine, IoRequest, IoTicket, IoWork, Lane};
pub use error::{FileOp, IoError, Place};
pub use file::{IoFile, IoMode, read_full, write_full};
pub use health::{Health, HealthOptions};
pub use os::OsVolume;
pub use psync::{PsyncEngine, PsyncOptions};
pub use staging::{Staging, StagingBuffer};
pub use volume::{OpenFile, Volume};
