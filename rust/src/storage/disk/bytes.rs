//! Little-endian fields in a row.

/// Writes fields one after the other. What does not fit is a mistake of the format, and is left out.
pub(super) struct Writer<'a>(pub(super) &'a mut [u8]);

impl Writer<'_> {
    pub(super) fn put(&mut self, bytes: &[u8]) {
        let here = std::mem::take(&mut self.0);
        let (now, rest) = here.split_at_mut(bytes.len().min(here.len()));
        now.copy_from_slice(&bytes[..now.len()]);
        self.0 = rest;
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }
}

/// Reads fields one after the other; zeros past the end.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        let (now, rest) = self.0.split_at(N.min(self.0.len()));
        field[..now.len()].copy_from_slice(now);
        self.0 = rest;
        field
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

/// The checksum of everything in this format.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::crc64_nvme(bytes)
}
