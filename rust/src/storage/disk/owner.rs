//! One owner per directory.
//!
//! The owner holds an exclusive `flock` on the lock file and writes its name into it, for the message
//! that a second comer gets. The kernel lets go of the lock when the owner's last descriptor is
//! closed, however it died: a name in a file that could be locked is that of an owner who did not
//! get to erase it. Process ids are shown and never trusted.

use std::fmt;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, ftruncate};
use rustix::io::{Errno, pread, pwrite};
use rustix::process::getpid;

use super::DiskError;
use crate::io::{FileOp, IoError, Place};
use crate::sync::Arc;

pub(super) const NAME: &str = "dynamo.lock";

/// Bytes of a note at most.
const NOTE_BYTES: usize = 1024;

/// Who owns a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Name of its host.
    pub host: String,
    /// Its process id there.
    pub pid: i32,
    /// Since when, in seconds since 1970.
    pub since: u64,
}

impl Holder {
    fn this() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { host, pid: getpid().as_raw_nonzero().get(), since }
    }

    fn parse(note: &str) -> Option<Self> {
        let mut lines = note.lines();
        let mut field = |name: &str| lines.next()?.strip_prefix(name);
        let host = field("host ")?.to_owned();
        let pid = field("pid ")?.parse().ok()?;
        Some(Self { host, pid, since: field("since ")?.parse().ok()? })
    }

    fn note(&self) -> String {
        format!("host {}\npid {}\nsince {}\n", self.host, self.pid, self.since)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {} (since {} s after 1970)", self.pid, self.host, self.since)
    }
}

/// The lock; let go of when dropped.
#[derive(Debug)]
pub(super) struct OwnerLock {
    fd: OwnedFd,
    pid: i32,
}

impl OwnerLock {
    /// Takes the lock of `folder`, and the name of the last owner if it did not close.
    pub(super) fn take(folder: &Path) -> Result<(Self, Option<Holder>), DiskError> {
        let path = folder.join(NAME);
        let name: Arc<str> = path.to_string_lossy().into();
        let place = Place::whole(&name, FileOp::Lock);
        let failed = |errno: Errno| IoError::from_os(place.clone(), &errno.into());
        loop {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let fd = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)).map_err(failed)?;
            match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    let path = folder.to_string_lossy().into();
                    return Err(DiskError::Locked { path, holder: read(&fd) });
                }
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(failed(errno).into()),
            }
            // Between opening and locking the file may have been replaced: then this one guards
            // nothing.
            let inode = fstat(&fd).map_err(failed)?.st_ino;
            if !fs::metadata(&path)
                .is_ok_and(|now| std::os::unix::fs::MetadataExt::ino(&now) == inode)
            {
                continue;
            }
            let died = read(&fd);
            let holder = Holder::this();
            // The note is a courtesy: without room for it the lock still holds.
            let noted = ftruncate(&fd, 0).and_then(|()| pwrite(&fd, holder.note().as_bytes(), 0));
            if let Err(error) = noted {
                tracing::warn!(path = %name, %error, "cannot note the owner of the directory");
            }
            return Ok((Self { fd, pid: holder.pid }, died));
        }
    }
}

fn read(fd: &OwnedFd) -> Option<Holder> {
    let mut note = [0; NOTE_BYTES];
    let len = pread(fd, &mut note, 0).ok()?;
    Holder::parse(std::str::from_utf8(&note[..len]).ok()?)
}

impl Drop for OwnerLock {
    fn drop(&mut self) {
        // A forked child has the same lock under another descriptor, and must not end it.
        if getpid().as_raw_nonzero().get() == self.pid {
            let _ = ftruncate(&self.fd, 0);
            // Not left to the closing, which waits for children that still have the descriptor.
            let _ = flock(&self.fd, FlockOperation::Unlock);
        }
    }
}
