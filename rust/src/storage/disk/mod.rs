//! Blocks on a drive: a directory that survives whatever happens to its owner.
//!
//! A [`DiskDirectory`] is one folder with one owner. It holds
//!
//! * `dynamo.lock`, locked by the owner, with the owner's name in it;
//! * `dynamo.super`, the superblock, twice: format version, geometries, fingerprints, reset
//!   generation;
//! * per geometry `dynamo-XXXXXXXX.data`, slots that start at multiples of 4096, and
//!   `dynamo-XXXXXXXX.table`, one record of 256 bytes per slot.
//!
//! A slot is a block's payload, padded to 4096, and behind it the sums of the payload's tiles, padded
//! likewise. A record says what is in a slot: names, parent, fingerprint, seal root, last use, and a
//! checksum over itself and its place. All zeros is an empty slot. Identities are opaque bytes here,
//! and sums are not checked: a record is a claim, and whoever reads the slot verifies it.
//!
//! # What holds
//!
//! * A record is written after the data it speaks of, erased before its slot is written again, and
//!   never crosses a sector, so it is there whole or not at all. A writer that forgets to erase is
//!   refused.
//! * Writing the superblock changes one copy, makes it durable, and only then the other: one is
//!   always whole, and after it has been written both say the same, so that damage to one brings
//!   nothing old back.
//! * Records of an older reset generation are never seen again. What was dropped at recovery for any
//!   other reason is erased there and then, and cannot come back either.
//! * The limit covers everything the directory has on the drive. Room is taken before it is needed
//!   and given back by punching holes.
//! * Files of ours that nothing refers to are removed at the next open. Others are never touched.
//!
//! # The order of syncs
//!
//! With [`Durability::Process`] the order of writes is the order of calls; the kernel keeps what was
//! written when the process dies. Only the superblock is synced, always. After a power failure
//! records may then speak of data that did not arrive; their seals tell.
//!
//! With [`Durability::Power`]:
//!
//! 1. Store: data is written; `write_records` syncs the data file, writes the records, syncs the
//!    table, and returns: from then on the blocks are acknowledged.
//! 2. Evict: `tombstone` erases the records, syncs the table, and returns: only then is a slot
//!    written again.
//! 3. Give room back: erase, sync the table, punch, write the mark of the hole.
//! 4. Reset: copy 0 of the superblock with the new generation, sync, copy 1, sync, return.
//! 5. New geometry: both files are made, the folder is synced, the superblock names them as in 4.
//!
//! # Costs
//!
//! Opening reads each table once, in order; so does asking for the blocks of another fingerprint,
//! of one table, while no record is written to the 4 MiB of it that are being read. Beside what the
//! drive does, storing a block costs one `pwrite` of 256 bytes; all records of one call share the
//! syncs. In memory: 2 bytes per slot.

mod bytes;
mod claim;
mod directory;
mod error;
mod file_storage;
mod geometry;
mod growth;
mod inspect;
mod memory;
mod opening;
mod options;
mod owner;
mod record;
mod recover;
mod report;
mod reread;
mod room;
mod set;
mod superblock;

pub use directory::DiskDirectory;
pub use error::DiskError;
pub use file_storage::{DiskAllocator, DiskStorage};
pub use geometry::{DiskSlot, Geometry, SetId, SlotPlace};
pub use inspect::{FingerprintUse, Inspection, SetUse, WalkedSlot, inspect, walk};
pub use memory::SlotMemory;
pub use options::{DiskOptions, Durability, Preallocation};
pub use owner::Holder;
pub use record::{DiskRecord, EngineName, FingerprintId, RECORD_BYTES};
pub use report::{DiskFinding, DropReason, Recovered, RecoveredBlock, RecoveryReport, Superblocks};
pub use superblock::FORMAT_VERSION;
