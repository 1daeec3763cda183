//! Taking room for files, and giving it back.

use std::io;
use std::ops::Range;

use super::{DiskError, Preallocation};
use crate::io::{FileOp, IoError, IoFile};

/// Whether the system says that the file system has no such operation.
fn cannot(error: &io::Error) -> bool {
    let codes = [libc::EOPNOTSUPP, libc::EINVAL, libc::ENOSYS, libc::ENODEV];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Reserves `range`, which starts at the end of the file or before; whether it stayed sparse.
pub(super) fn take(
    file: &dyn IoFile,
    range: Range<u64>,
    how: Preallocation,
) -> Result<bool, DiskError> {
    if how != Preallocation::Never {
        match file.allocate(range.clone()) {
            Ok(()) => return Ok(false),
            Err(error) if how == Preallocation::Auto && cannot(&error) => {}
            Err(error) => return Err(file.failed(FileOp::Allocate, range)(error).into()),
        }
    }
    let len = file.len().map_err(file.failed(FileOp::Stat, 0..0))?;
    if len < range.end {
        file.set_len(range.end).map_err(file.failed(FileOp::Resize, len..range.end))?;
    }
    Ok(true)
}

/// Gives `range` back; whether the file system can.
pub(super) fn give_back(file: &dyn IoFile, range: Range<u64>) -> Result<bool, IoError> {
    match file.punch(range.clone()) {
        Ok(()) => Ok(true),
        Err(error) if cannot(&error) => Ok(false),
        Err(error) => Err(file.failed(FileOp::Punch, range)(error)),
    }
}
