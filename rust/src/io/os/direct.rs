//! Whether direct I/O works here.
//!
//! Having the flag says nothing: tmpfs and some overlays refuse it at open, some file systems take it
//! and fail the first transfer, others need larger units than ours. So it is tried: a folder with an
//! unnamed file that is written and read back, and each file with what the kernel says of it
//! (`STATX_DIOALIGN`, Linux 6.1) and a read.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::io::{pread, pwrite};

use super::super::{AlignedBuffer, IO_ALIGNMENT};
use crate::sync::Arc;

/// What everything is a multiple of: [`IO_ALIGNMENT`], whatever less the drive would take.
pub(super) const ALIGNMENT: u32 = IO_ALIGNMENT as u32;

/// What a trial in a folder showed.
#[derive(Clone, Debug)]
pub(super) enum DirectIo {
    Direct,
    /// Not, and why.
    Buffered(Arc<str>),
}

/// Tries it with an unnamed file in `folder`.
pub(super) fn probe(folder: &Path) -> DirectIo {
    let flags = OFlags::DIRECT | OFlags::TMPFILE;
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(flags.bits().cast_signed())
        .open(folder);
    let file = match opened.map_err(|error| error.raw_os_error()) {
        Ok(file) => OwnedFd::from(file),
        // No unnamed files here, or none may be made: each file is tried by reading.
        Err(Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EROFS | libc::EACCES | libc::ENOSPC)) => {
            return DirectIo::Direct;
        }
        Err(_) => return DirectIo::Buffered("the file system refuses to open files so".into()),
    };
    let mut page = AlignedBuffer::new(IO_ALIGNMENT);
    page.fill(0xa5);
    if !matches!(pwrite(&file, &page, 0), Ok(IO_ALIGNMENT)) {
        return DirectIo::Buffered("the file system fails to write so".into());
    }
    page.fill(0);
    match pread(&file, &mut *page, 0) {
        Ok(IO_ALIGNMENT) if page.iter().all(|&byte| byte == 0xa5) => match reads(&file) {
            Ok(()) => DirectIo::Direct,
            Err(reason) => DirectIo::Buffered(reason),
        },
        _ => DirectIo::Buffered("the file system fails to read so".into()),
    }
}

/// Whether this file, opened for it, takes direct I/O in units of [`ALIGNMENT`].
pub(super) fn reads(file: &impl AsFd) -> Result<(), Arc<str>> {
    if let Ok(found) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        && found.stx_mask & StatxFlags::DIOALIGN.bits() != 0
    {
        let units = [found.stx_dio_mem_align, found.stx_dio_offset_align];
        if units.contains(&0) {
            return Err("the kernel says that this file cannot".into());
        }
        if let Some(unit) = units.into_iter().find(|&unit| !ALIGNMENT.is_multiple_of(unit)) {
            return Err(format!("the drive needs units of {unit} bytes").into());
        }
    }
    let mut page = AlignedBuffer::new(IO_ALIGNMENT);
    match pread(file, &mut *page, 0) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("a direct read failed: {error}").into()),
    }
}
