//! What was found when a directory was opened.

use std::collections::BTreeMap;
use std::fmt;

use super::{DiskRecord, DiskSlot, Holder};
use crate::config::format_size;
use crate::io::IoMode;

/// Why a record was not kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum DropReason {
    /// Its checksum does not fit: written in part, or damaged.
    Torn,
    /// It belongs to another slot.
    Misplaced,
    /// It was stored before the last reset.
    Generation,
    /// Its fingerprint is not in the table.
    Fingerprint,
    /// It says more bytes than a slot has.
    Length,
    /// A newer one names the same block.
    Duplicate,
    /// Its slot is past the end of the data file.
    NoData,
    /// The drive could not read it.
    Unreadable,
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Torn => "torn",
            Self::Misplaced => "misplaced",
            Self::Generation => "reset",
            Self::Fingerprint => "unknown fingerprint",
            Self::Length => "too long",
            Self::Duplicate => "duplicate",
            Self::NoData => "without data",
            Self::Unreadable => "unreadable",
        })
    }
}

/// In what state the copies of the superblock were.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Superblocks {
    /// There was none: the directory is new, or its making was cut short.
    Fresh,
    /// Both whole and equal.
    Whole,
    /// One was behind or damaged; it was written anew.
    OneCopy,
    /// Both were damaged: the directory starts empty.
    Lost,
}

/// Something that works in another way than it might.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DiskFinding {
    /// Room cannot be reserved here: files are sparse, and may meet a full drive later.
    Sparse,
    /// Room cannot be given back here: it stays counted.
    NoPunching,
    /// How data reaches the drive.
    Mode(IoMode),
    /// The limit is more than the file system has room for.
    Overcommitted {
        /// Bytes that the directory may still grow by.
        wanted: u64,
        /// Bytes that are free.
        free: u64,
    },
}

impl fmt::Display for DiskFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sparse => f.write_str("room cannot be reserved on this file system"),
            Self::NoPunching => f.write_str("room cannot be given back on this file system"),
            Self::Mode(IoMode::Direct { alignment }) => {
                write!(f, "direct I/O in units of {alignment} bytes")
            }
            Self::Mode(IoMode::Buffered { reason }) => write!(f, "buffered I/O: {reason}"),
            Self::Overcommitted { wanted, free } => {
                let (wanted, free) = (format_size(*wanted), format_size(*free));
                write!(f, "the limit leaves {wanted} to be filled, and the file system has {free}")
            }
        }
    }
}

/// A block that a record speaks of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecoveredBlock {
    /// Where.
    pub slot: DiskSlot,
    /// Ascends in the order of storing.
    pub sequence: u64,
    /// What is said of it.
    pub record: DiskRecord,
}

/// Counts and conditions at opening.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Records that were kept.
    pub kept: u64,
    /// Records that were not, by reason.
    pub dropped: BTreeMap<DropReason, u64>,
    /// State of the superblock.
    pub superblocks: Superblocks,
    /// Files of ours that nothing referred to; removed.
    pub removed: Vec<String>,
    /// The owner before, where it did not close the directory.
    pub died: Option<Holder>,
}

/// What is in the directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recovered {
    /// The blocks of all sets, by set and slot. Each is a claim until its bytes verify.
    pub blocks: Vec<RecoveredBlock>,
    /// What was kept and what was not.
    pub report: RecoveryReport,
}
