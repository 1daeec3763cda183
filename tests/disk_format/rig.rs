//! A small geometry, blocks that are known by a version number, and hands that do damage.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dynamo_llm::block_manager::io::{AlignedBuffer, read_full, write_full};
use dynamo_llm::block_manager::storage::disk::{
    DiskDirectory, DiskError, DiskOptions, DiskRecord, DiskSlot, EngineName, FingerprintId,
    Geometry, Recovered,
};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const PAYLOAD: usize = 1000;
pub(crate) const TILES: usize = 2;
pub(crate) const DIGEST: [u8; 32] = [7; 32];

pub(crate) fn geometry() -> Geometry {
    Geometry::new(PAYLOAD as u64, TILES as u32).unwrap()
}

pub(crate) fn options() -> DiskOptions {
    DiskOptions::new(64 * MIB, geometry())
}

pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

pub(crate) fn name(version: u64) -> [u8; 16] {
    let mut name = [0xab; 16];
    name[..8].copy_from_slice(&version.to_le_bytes());
    name
}

pub(crate) fn version(name: [u8; 16]) -> u64 {
    u64::from_le_bytes(name[..8].try_into().unwrap())
}

pub(crate) fn record(
    directory: &DiskDirectory,
    fingerprint: FingerprintId,
    key: u64,
    version: u64,
) -> DiskRecord {
    DiskRecord {
        key: name(key),
        group: 3,
        engine: EngineName::new(&[key as u8; 36]).unwrap(),
        parent: (version % 2 == 1).then(|| name(version - 1)),
        depth: version as u32,
        fingerprint,
        codec: 0,
        stored_len: PAYLOAD as u64,
        seal_root: name(version),
        generation: directory.generation(),
        last_use: version,
    }
}

/// The bytes of a slot: payload, padding, sums, padding.
pub(crate) fn bytes(version: u64) -> AlignedBuffer {
    let slot = geometry().slot_bytes() as usize;
    let mut buffer = AlignedBuffer::new(slot);
    for (at, byte) in buffer.iter_mut().enumerate() {
        *byte = (version as u8) ^ (at / 512) as u8 ^ 0x5a;
    }
    let sums = geometry().padded_payload() as usize;
    buffer[sums..sums + 8].copy_from_slice(&version.to_le_bytes());
    buffer
}

pub(crate) fn put(
    directory: &DiskDirectory,
    slot: DiskSlot,
    fingerprint: FingerprintId,
    key: u64,
    version: u64,
) -> Result<(), DiskError> {
    let place = directory.place(slot)?;
    write_full(&*place.file, &[&bytes(version)], place.offset)?;
    directory.write_records(&[(slot, record(directory, fingerprint, key, version))])
}

pub(crate) fn is_there(directory: &DiskDirectory, slot: DiskSlot, version: u64) -> bool {
    let place = directory.place(slot).unwrap();
    let mut found = AlignedBuffer::new((place.payload + place.sums) as usize);
    read_full(&*place.file, &mut [&mut found], place.offset).unwrap();
    *found == *bytes(version)
}

pub(crate) fn grow(directory: &DiskDirectory, slots: u32) -> Vec<DiskSlot> {
    let set = directory.current();
    directory.grow(set, slots).unwrap().map(|slot| DiskSlot { set, slot }).collect()
}

/// A directory at `path` with blocks 0..count.
pub(crate) fn fill(path: &Path, count: u32) -> (DiskDirectory, Vec<DiskSlot>) {
    let (directory, _) = DiskDirectory::open(path, options()).unwrap();
    let fingerprint = directory.fingerprint(DIGEST, "model").unwrap();
    let slots = grow(&directory, count);
    for (at, &slot) in slots.iter().enumerate() {
        put(&directory, slot, fingerprint, at as u64, at as u64).unwrap();
    }
    (directory, slots)
}

pub(crate) fn versions(recovered: &Recovered) -> Vec<u64> {
    recovered.blocks.iter().map(|block| version(block.record.seal_root)).collect()
}

pub(crate) fn file_ending(path: &Path, end: &str) -> PathBuf {
    let mut entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.find(|path| path.to_str().unwrap().ends_with(end)).unwrap()
}

/// Changes a byte of a file.
pub(crate) fn flip(path: &Path, at: u64) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}
