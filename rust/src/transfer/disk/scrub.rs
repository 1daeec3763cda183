//! Whether a slot can be trusted again.

use super::{blocks::DiskBlocks, drive::Drive};
use crate::{
    eviction::SlotId,
    io::{AlignedBuffer, IoDone, IoError, IoRequest, IoWork, Lane, read_full, write_full},
    storage::disk::DiskError,
    sync::{Arc, Mutex},
};

/// What writing a slot and reading it back has shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tested {
    /// The drive took and gave the bytes as they are.
    Holds,
    /// It did not.
    Fails,
    /// There is no room for the slot now.
    NoRoom,
    /// Nothing: the drive was not asked, or was not able to answer.
    Unknown,
}

impl DiskBlocks {
    /// Writes patterns to a slot that its caller owns and reads them back, on the store lane of its
    /// drive, some time soon. `told` is called once: on a thread of the drive's or, where it takes no
    /// requests, on this one. The slot has no record afterwards.
    pub(crate) fn test(&self, slot: SlotId, told: impl FnOnce(Tested) + Send + 'static) {
        match self.at(slot) {
            Some((drive, slot)) => drive.try_later(move |drive| drive.try_patterns(slot), told),
            None => told(Tested::Unknown),
        }
    }

    /// The same for a slot that lacks nothing but room: one that has some is tested, since where
    /// files are sparse it may be less than it needs.
    pub(crate) fn find_room(&self, slot: SlotId, told: impl FnOnce(Tested) + Send + 'static) {
        match self.at(slot) {
            Some((drive, slot)) if drive.slot(slot).is_none() => drive.try_later(
                move |drive| {
                    let open = drive.open().ok_or(IoError::Stopped)?;
                    let (directory, _) = open.parts()?;
                    if !drive.is_read() {
                        return Err(DiskError::Unread);
                    }
                    drive.settle(directory, slot).map(|_| true)
                },
                told,
            ),
            _ => self.test(slot, told),
        }
    }

    /// Whether a slot that its caller owns holds what is written to it, on the calling thread. The
    /// slot has no record afterwards.
    pub(crate) fn holds_patterns(&self, slot: SlotId) -> bool {
        let tried = self.at(slot).map(|(drive, slot)| drive.try_patterns(slot));
        matches!(tried, Some(Ok(true)))
    }
}

impl Drive {
    /// Tries something on the store lane.
    fn try_later(
        self: &Arc<Self>,
        try_it: impl FnOnce(&Arc<Self>) -> Result<bool, DiskError> + Send + 'static,
        told: impl FnOnce(Tested) + Send + 'static,
    ) {
        let verdict = Arc::new(Mutex::new(Tested::Unknown));
        let (drive, found) = (self.clone(), verdict.clone());
        let call = move || {
            let tried = try_it(&drive);
            *found.lock() = match &tried {
                Ok(true) => Tested::Holds,
                Ok(false) | Err(DiskError::Io(IoError::Device { .. })) => Tested::Fails,
                Err(
                    DiskError::LimitReached { .. }
                    | DiskError::TableFull { .. }
                    | DiskError::Io(IoError::NoSpace { .. }),
                ) => Tested::NoRoom,
                Err(_) => Tested::Unknown,
            };
            match tried {
                // Known of this slot: neither a failure of the lane nor a trial that it passed.
                Err(DiskError::Io(IoError::Device { .. })) | Ok(false) => {
                    Err(IoError::Cancelled { lane: Lane::Store })
                }
                Err(DiskError::Io(error)) => Err(error),
                _ => Ok(()),
            }
        };
        let request = IoRequest {
            lane: Lane::Store,
            work: IoWork::Call(Box::new(call)),
            deadline: None,
            done: Box::new(move |_| {
                let verdict = *verdict.lock();
                told(verdict);
            }),
        };
        if let Err((error, request)) = self.io.submit(request) {
            (request.done)(IoDone { result: Err(error), buffers: Vec::new() });
        }
    }

    fn try_patterns(self: &Arc<Self>, slot: SlotId) -> Result<bool, DiskError> {
        let open = self.open().ok_or(IoError::Stopped)?;
        let (directory, file) = open.parts()?;
        // Until then nothing is known of what lies there.
        if !self.is_read() {
            return Err(DiskError::Unread);
        }
        let place = self.settle(directory, slot)?;
        directory.tombstone(&[place])?;
        let offset = self.offset(place);
        let mut bytes =
            AlignedBuffer::new(usize::try_from(self.geometry.slot_bytes()).unwrap_or(0));
        for pattern in [0x55, 0xaa] {
            bytes.fill(pattern);
            write_full(file, &[&bytes], offset)?;
            bytes.fill(!pattern);
            read_full(file, &mut [&mut bytes], offset)?;
            if bytes.iter().any(|&byte| byte != pattern) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
