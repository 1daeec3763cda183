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
        write!(f, "process {} on {} (since {})", self.pid, self.host, utc(self.since))
    }
}

/// A time in seconds since 1970, for people.
fn utc(seconds: u64) -> String {
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    // Centuries of days at a time: years that nobody means must not take for ever.
    let mut year = 1970 + days / 146_097 * 400;
    days %= 146_097;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let (month, day) = (month + 1, days + 1);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_said_in_words_of_the_calendar() {
        for (seconds, said) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_827_696, "2000-02-29 12:34:56 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (1_709_251_200, "2024-03-01 00:00:00 UTC"),
            (1_796_078_885, "2026-11-30 22:48:05 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (13_574_563_200, "2400-02-29 00:00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), said);
        }
        assert!(utc(u64::MAX).starts_with("584554"), "{}", utc(u64::MAX));
    }
}
