//! What can go wrong with a directory.

use std::fmt;

use super::{DiskSlot, Holder, SetId};
use crate::io::IoError;
use crate::sync::Arc;

/// A directory could not be opened or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// The system or the drive.
    #[error(transparent)]
    Io(#[from] IoError),
    /// Somebody else has the directory.
    #[error("{path} is in use by {}; stop it, or name another directory", Named(holder.as_ref()))]
    Locked {
        /// The directory.
        path: Arc<str>,
        /// Who; `None` where its note cannot be read.
        holder: Option<Holder>,
    },
    /// The directory was written by a later version of this program.
    #[error(
        "format version {found} is newer than {known}; use the version that wrote the directory, \
         or name another directory"
    )]
    Version {
        /// What was found.
        found: u32,
        /// The latest that is known here.
        known: u32,
    },
    /// A folder that is not one of ours.
    #[error("{path} holds other files and none of a block directory; name one that does")]
    Foreign {
        /// The folder.
        path: Arc<str>,
    },
    /// More room than the limit leaves.
    #[error(
        "bytes: {wanted} more do not fit, {used} of at most {limit} are in use; \
         give slots up first, or raise the limit"
    )]
    LimitReached {
        /// Bytes that were to be added.
        wanted: u64,
        /// Bytes in use.
        used: u64,
        /// At most so many.
        limit: u64,
    },
    /// The slot's record is still there.
    #[error("{slot} still has a record; erase it before the slot is used again")]
    SlotInUse {
        /// Which.
        slot: DiskSlot,
    },
    /// The slot's room was given up.
    #[error("{slot} was given up; take its room back first")]
    SlotGivenUp {
        /// Which.
        slot: DiskSlot,
    },
    /// No such slot.
    #[error("{slot} is not there, the set has {slots}; grow it first")]
    NoSuchSlot {
        /// Which.
        slot: DiskSlot,
        /// Slots there are.
        slots: u32,
    },
    /// No such set.
    #[error("set {set} is not in this directory; open it with its geometry")]
    NoSuchSet {
        /// Which.
        set: SetId,
    },
    /// A set that is to be removed still has blocks, or is the one stored under.
    #[error("set {set} is in use; erase its blocks first, and store under another geometry")]
    SetInUse {
        /// Which.
        set: SetId,
    },
    /// The record belongs to a generation that has been reset.
    #[error("generation: {found} is not {current}, the present one; the block must be dropped")]
    WrongGeneration {
        /// The record's.
        found: u64,
        /// The directory's.
        current: u64,
    },
    /// The record's fingerprint is not in the table.
    #[error("fingerprint: number {index} is not in the table; register it first")]
    NoSuchFingerprint {
        /// Its number.
        index: u16,
    },
    /// What the directory holds under the present fingerprint is not known yet.
    #[error(
        "the table was not read since the weights were changed: blocks there are not found and none \
         are stored; set the version again once the drive answers"
    )]
    Unread,
    /// All places of a table are taken.
    #[error("the directory has no place for another {what}, it has {limit}; use another directory")]
    TableFull {
        /// What there is no place for.
        what: &'static str,
        /// How many there are.
        limit: usize,
    },
    /// One of several drives.
    #[error("{dir}: {source}")]
    Drive {
        /// Its directory.
        dir: Arc<str>,
        /// What is wrong with it.
        source: Box<DiskError>,
    },
    /// An argument that can never work.
    #[error("{field}: {value} is not usable; {remedy}")]
    InvalidConfig {
        /// The argument or field.
        field: &'static str,
        /// What was given.
        value: String,
        /// What to do instead.
        remedy: &'static str,
    },
}

impl DiskError {
    /// The same, of the drive at `dir`.
    pub(crate) fn on(self, dir: &Arc<str>) -> Self {
        match self {
            // These name it themselves.
            Self::Drive { .. } | Self::Locked { .. } | Self::Foreign { .. } => self,
            source => Self::Drive { dir: dir.clone(), source: Box::new(source) },
        }
    }
}

struct Named<'a>(Option<&'a Holder>);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(holder) => holder.fmt(f),
            None => f.write_str("another process"),
        }
    }
}
