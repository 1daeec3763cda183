//! A folder of the operating system.

mod direct;
mod file;

use std::any::Any;
use std::fmt;
use std::fs;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use self::direct::DirectIo;
use self::file::OsFile;
use super::{FileOp, IoError, IoFile, IoMode, OpenFile, Place, Volume};
use crate::sync::Arc;

/// A folder, with what was found out about direct I/O in it.
pub struct OsVolume {
    path: Arc<str>,
    direct: DirectIo,
    /// Held by each of its files too: see [`guarded_by`](Self::guarded_by).
    guard: Option<Arc<dyn Any + Send + Sync>>,
}

impl OsVolume {
    /// The folder at `path`, which exists. `direct` allows direct I/O where a trial shows that it
    /// works; what came of it is logged once and stands in [`IoFile::mode`] of each file.
    ///
    /// # Errors
    ///
    /// [`IoError::Gone`] where there is no such folder.
    pub fn new(path: &Path, direct: bool) -> Result<Self, IoError> {
        let name: Arc<str> = path.to_string_lossy().into();
        let place = Place::whole(&name, FileOp::Open);
        let found = fs::metadata(path).map_err(|error| IoError::from_os(place.clone(), &error))?;
        if !found.is_dir() {
            return Err(IoError::Gone { place });
        }
        let direct = if direct {
            direct::probe(path)
        } else {
            DirectIo::Buffered("it was switched off".into())
        };
        match &direct {
            DirectIo::Direct => tracing::info!(path = %name, "direct I/O"),
            DirectIo::Buffered(reason) => {
                tracing::info!(path = %name, %reason, "buffered I/O");
            }
        }
        Ok(Self { path: name, direct, guard: None })
    }

    /// Keeps `guard` as long as this volume or a file opened through it: an I/O that hangs past the
    /// end of its owner still counts as use of the folder.
    #[must_use]
    pub fn guarded_by(mut self, guard: Arc<dyn Any + Send + Sync>) -> Self {
        self.guard = Some(guard);
        self
    }

    fn place(&self, name: &str, op: FileOp) -> Place {
        Place::whole(&format!("{}/{name}", self.path).into(), op)
    }
}

impl Volume for OsVolume {
    fn path(&self) -> &str {
        &self.path
    }

    fn names(&self) -> Result<Vec<String>, IoError> {
        let place = Place::whole(&self.path, FileOp::List);
        let failed = |error| IoError::from_os(place.clone(), &error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&*self.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // Vanished meanwhile: not there.
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            names.extend(entry.file_name().into_string().ok().filter(|_| is_file));
        }
        Ok(names)
    }

    fn open(&self, name: &str, how: OpenFile) -> Result<Arc<dyn IoFile>, IoError> {
        let path: Arc<str> = format!("{}/{name}", self.path).into();
        let access = if how.write { OFlags::RDWR } else { OFlags::RDONLY };
        let create = if how.create { OFlags::CREATE } else { OFlags::empty() };
        // Nobody plants a link to be followed.
        let flags = access | create | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let open = |flags| rustix::fs::open(&*path, flags, Mode::from_raw_mode(0o600));
        let buffered = |reason| IoMode::Buffered { reason };
        let mut mode = match (&self.direct, how.direct) {
            (_, false) => buffered("the file is opened so".into()),
            (DirectIo::Buffered(reason), true) => buffered(reason.clone()),
            (DirectIo::Direct, true) => IoMode::Direct { alignment: direct::ALIGNMENT },
        };
        if let IoMode::Direct { .. } = mode {
            match open(flags | OFlags::DIRECT).map(|fd| (direct::reads(&fd), fd)) {
                Ok((Ok(()), fd)) => {
                    return Ok(Arc::new(OsFile::new(fd, path, mode, self.guard.clone())));
                }
                Ok((Err(reason), _)) => mode = buffered(reason),
                Err(rustix::io::Errno::INVAL) => {
                    mode = buffered("the file system refuses to open it so".into());
                }
                Err(error) => {
                    return Err(IoError::from_os(self.place(name, FileOp::Open), &error.into()));
                }
            }
            tracing::warn!(%path, ?mode, "no direct I/O for this file");
        }
        let fd = open(flags)
            .map_err(|error| IoError::from_os(self.place(name, FileOp::Open), &error.into()))?;
        Ok(Arc::new(OsFile::new(fd, path, mode, self.guard.clone())))
    }

    fn remove(&self, name: &str) -> Result<(), IoError> {
        match fs::remove_file(format!("{}/{name}", self.path)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(IoError::from_os(self.place(name, FileOp::Remove), &error))
            }
            _ => Ok(()),
        }
    }

    fn sync(&self) -> Result<(), IoError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&*self.path, flags, Mode::empty()).and_then(rustix::fs::fsync).map_err(
            |error| IoError::from_os(Place::whole(&self.path, FileOp::Sync), &error.into()),
        )
    }

    fn free_bytes(&self) -> Option<u64> {
        let found = rustix::fs::statvfs(&*self.path).ok()?;
        Some(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

impl fmt::Debug for OsVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("OsVolume");
        f.field("path", &self.path).field("direct", &self.direct).finish_non_exhaustive()
    }
}
