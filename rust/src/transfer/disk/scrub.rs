//! Whether a slot can be trusted again.

use super::drive::Drive;
use crate::{
    eviction::SlotId,
    io::{AlignedBuffer, read_full, write_full},
    storage::disk::DiskError,
    sync::Arc,
};

impl Drive {
    /// Writes patterns to a slot that its caller owns and reads them back, on the calling thread;
    /// whether the drive took and gave them as they are. The slot has no record afterwards.
    pub(super) fn holds_patterns(self: &Arc<Self>, slot: SlotId) -> bool {
        self.try_patterns(slot).unwrap_or(false)
    }

    fn try_patterns(self: &Arc<Self>, slot: SlotId) -> Result<bool, DiskError> {
        let Some(open) = self.open() else { return Ok(false) };
        let (directory, file) = open.parts()?;
        if !self.is_read() {
            return Ok(false);
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
