//! What can go wrong with a file.

use std::{fmt, io};

use rustix::io::Errno;

use super::Lane;
use crate::sync::Arc;

/// What was being done to a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FileOp {
    /// Opening or creating it.
    Open,
    /// Reading bytes.
    Read,
    /// Writing bytes.
    Write,
    /// Making written bytes durable.
    Sync,
    /// Reserving room.
    Allocate,
    /// Giving room back.
    Punch,
    /// Setting the length.
    Resize,
    /// Removing it.
    Remove,
    /// Listing a folder.
    List,
    /// Asking for length or identity.
    Stat,
    /// Taking the owner's lock.
    Lock,
}

impl FileOp {
    const fn verb(self) -> &'static str {
        match self {
            Self::Open => "opening",
            Self::Read => "reading",
            Self::Write => "writing",
            Self::Sync => "syncing",
            Self::Allocate => "allocating",
            Self::Punch => "punching",
            Self::Resize => "resizing",
            Self::Remove => "removing",
            Self::List => "listing",
            Self::Stat => "examining",
            Self::Lock => "locking",
        }
    }
}

/// Where it happened: operation, file and byte range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Path of the file.
    pub file: Arc<str>,
    /// What was done.
    pub op: FileOp,
    /// First byte; 0 where the operation has no range.
    pub offset: u64,
    /// Bytes; 0 where the operation has no range.
    pub len: u64,
}

impl Place {
    /// An operation on a file as a whole.
    pub fn whole(file: &Arc<str>, op: FileOp) -> Self {
        Self { file: file.clone(), op, offset: 0, len: 0 }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, file) = (self.op.verb(), &self.file);
        match self.len {
            0 => write!(f, "{verb} {file}"),
            len => write!(f, "{verb} {len} bytes at {} of {file}", self.offset),
        }
    }
}

/// An I/O request or a file operation failed.
///
/// `Clone`, because one failure is told to each block that it hit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IoError {
    /// The file system or the quota is full.
    #[error("{place}: no space left; free some there, or lower the size of the tier")]
    NoSpace {
        /// Where.
        place: Place,
    },
    /// The drive failed.
    #[error("{place}: the drive reports an I/O error; look at the kernel log and its health")]
    Device {
        /// Where.
        place: Place,
    },
    /// The file, its folder or its mount is gone.
    #[error("{place}: not there any more; restore the folder or name another")]
    Gone {
        /// Where.
        place: Place,
    },
    /// The file system is read-only.
    #[error("{place}: the file system is read-only; mount it for writing or name another folder")]
    ReadOnly {
        /// Where.
        place: Place,
    },
    /// The process may not.
    #[error("{place}: not permitted; give this user read and write access")]
    Refused {
        /// Where.
        place: Place,
    },
    /// The file ended, or the drive took no more, in the middle.
    #[error("{place}: stopped after {done} bytes; the file is shorter than it should be")]
    Short {
        /// Where.
        place: Place,
        /// Bytes that were transferred.
        done: u64,
    },
    /// A range or a buffer that direct I/O cannot take.
    #[error("{place}: offset, length and memory of direct I/O must be multiples of {alignment}")]
    Misaligned {
        /// Where.
        place: Place,
        /// What they must be multiples of, bytes.
        alignment: u32,
    },
    /// The file system has no such operation.
    #[error("{place}: this file system has no such operation; do without it or name another")]
    Unsupported {
        /// Where.
        place: Place,
    },
    /// Memory lent for reading from was handed to a read, which would write it.
    #[error("{place}: buffer {index} may only be read; lend it for writing")]
    NotWritable {
        /// Where.
        place: Place,
        /// Which of the buffers.
        index: usize,
    },
    /// Any other answer of the operating system.
    #[error("{place}: {reason} (code {code}); see the manual of the call")]
    System {
        /// Where.
        place: Place,
        /// The code of the system.
        code: i32,
        /// Its text.
        reason: String,
    },
    /// An operation has been under way for longer than a healthy drive takes.
    #[error("a {lane} has been under way for {millis} ms; the drive or its mount hangs")]
    Stuck {
        /// Which lane.
        lane: Lane,
        /// For how long when it was noticed.
        millis: u64,
    },
    /// The lane's queue is full.
    #[error("{lane} queue: {queued} requests of at most {limit} wait; submit fewer, or raise it")]
    QueueFull {
        /// Which lane.
        lane: Lane,
        /// Requests that wait.
        queued: usize,
        /// At most so many.
        limit: usize,
    },
    /// The deadline passed before the request began.
    #[error("a {lane} did not begin before its deadline; nothing was transferred")]
    Expired {
        /// Which lane.
        lane: Lane,
    },
    /// The request was cancelled before it began.
    #[error("a {lane} was cancelled before it began; nothing was transferred")]
    Cancelled {
        /// Which lane.
        lane: Lane,
    },
    /// The lane is out of use until its drive recovers.
    #[error("{lane}s are off: {cause}; they are tried again by themselves")]
    Sick {
        /// Which lane.
        lane: Lane,
        /// The failure that decided.
        cause: Arc<IoError>,
    },
    /// The engine was dropped before the request began.
    #[error("the I/O engine has stopped; nothing was transferred")]
    Stopped,
    /// The system gave no thread.
    #[error("no thread for I/O: {reason}; raise the limit on threads")]
    Thread {
        /// What the system said.
        reason: String,
    },
    /// A function run by the engine panicked.
    #[error("a function run on the {lane} lane panicked; see the log")]
    Panicked {
        /// Which lane.
        lane: Lane,
    },
    /// An argument that can never work.
    #[error("{field}: {value} is not usable; {remedy}")]
    InvalidConfig {
        /// The argument.
        field: &'static str,
        /// What was given.
        value: String,
        /// What to do instead.
        remedy: &'static str,
    },
}

impl IoError {
    /// What the system said, at a place.
    pub fn from_os(place: Place, error: &io::Error) -> Self {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Self::NoSpace { place },
            Some(Errno::IO | Errno::REMOTEIO | Errno::NODATA) => Self::Device { place },
            Some(Errno::NOENT | Errno::STALE | Errno::NODEV | Errno::NXIO | Errno::NOTDIR) => {
                Self::Gone { place }
            }
            Some(Errno::ROFS) => Self::ReadOnly { place },
            Some(Errno::ACCESS | Errno::PERM) => Self::Refused { place },
            Some(Errno::OPNOTSUPP | Errno::NOSYS) => Self::Unsupported { place },
            code => Self::System {
                place,
                code: code.map_or(0, Errno::raw_os_error),
                reason: error.to_string(),
            },
        }
    }

    /// Whether it speaks against the drive, rather than the request, the room or the queue.
    pub fn blames_drive(&self) -> bool {
        matches!(
            self,
            Self::Device { .. }
                | Self::Gone { .. }
                | Self::ReadOnly { .. }
                | Self::System { .. }
                | Self::Stuck { .. }
        )
    }
}
