//! Blocks between memory and drives.
//!
//! A [`Drive`] is a [`DiskDirectory`](crate::storage::disk::DiskDirectory) with an I/O engine of its
//! own. [`DiskBlocks`] are the slots of a tier on one drive or several, each with a run of them; which
//! one a block goes to follows from its name, by rendezvous, weighted by capacity, among those that
//! take stores. [`DiskEngine`] copies to and from them on the threads of their engines, a block at a
//! time.
//!
//! # What holds
//!
//! * A store is reported when the block's record has been written, and not before: from then on it
//!   survives the death of the process. The order is: the record of whatever was in the slot is
//!   erased; data and sums are written; the record is written.
//! * A load reports the sums of the bytes that it has read. Whether they are those of the block is
//!   for whoever compares them with the root.
//! * Drives share nothing but the counters that order their blocks in time. What hangs or dies is
//!   that drive's own.
//! * A block that was sealed in memory is stored with the sums of then, not with new ones.
//! * Loads and stores have lanes, threads and staging of their own. There is one staging buffer for
//!   each thread, so that no request waits for one, whatever other tiers hold.
//! * A record carries the reset generation that its slot was allocated in. A block whose copy began
//!   before a reset is never acknowledged after it.
//! * A record carries the fingerprint of the era that its slot was allocated in. A switch to another
//!   fingerprint takes effect in memory at once; until a drive's table has been read for it the drive
//!   takes no stores.
//! * A slot of the directory that is being written, or that is out of use, stays with the slot of the
//!   tier that has it, whatever is read or switched meanwhile.
//!
//! # Room
//!
//! Slots are found room when they are first written: free slots of the directory, then new ones,
//! then those of blocks that nothing here can read (of another fingerprint, then of another
//! geometry), oldest first. So models share a directory until its limit is reached. Where the limit
//! is lower than before, room is given back at opening, in the same order.
//!
//! # Costs
//!
//! A block that is one run in memory, aligned to 4096, is read and written where it lies; others
//! are copied once more, in the pass that sums them. In memory: 4 bytes per slot. A switch of
//! fingerprints reads each table once, and keeps the names of the blocks that can be read then.

mod answer;
mod blocks;
mod check;
mod drive;
mod engine;
mod era;
mod forget;
mod limit;
mod opening;
mod pass;
mod reading;
mod rendezvous;
mod room;
mod scrub;
mod task;

pub(crate) use answer::Answer;
pub(crate) use blocks::BegunReset;
pub use blocks::DiskBlocks;
pub use check::{Verification, verify};
pub use drive::Drive;
pub use engine::DiskEngine;
pub use opening::{DiskBlocksOptions, DriveOptions, RecoveredSlot};
pub(crate) use reading::Reading;
pub(crate) use scrub::Tested;
