//! A million blocks found again.

use std::fs::File;
use std::hint::black_box;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use dynamo_llm::block_manager::storage::disk::{
    DiskDirectory, DiskOptions, DiskRecord, DiskSlot, EngineName, Geometry, Preallocation, inspect,
};

use crate::{figure, tier};

const BLOCKS: u32 = 1_000_000;

/// Opening a directory.
pub(crate) fn records(folder: &Path) {
    let folder = folder.join("records");
    let mut options = DiskOptions::new(u64::MAX, Geometry::new(4096, 0).unwrap());
    options.preallocation = Preallocation::Never;
    fill(&folder, &options, [1; 32]);
    let table = table(&folder);
    figure::compare(
        "disk_recovery_1m",
        "records/s",
        f64::from(BLOCKS),
        || {
            let (_, recovered) = DiskDirectory::open(&folder, options.clone()).unwrap();
            assert_eq!(recovered.blocks.len(), BLOCKS as usize);
        },
        "reading the table alone",
        || read(&table),
    );
}

/// From nothing to a manager that finds them.
pub(crate) fn manager(folder: &Path) {
    let folder = folder.join("restart");
    drop(tier::manager(&folder, 4096, 8, BLOCKS as usize));
    // Under the fingerprint that the manager has entered.
    let digest = inspect(&folder).unwrap().fingerprints[0].digest;
    let mut options = DiskOptions::new(u64::MAX, Geometry::new(4096, 1).unwrap());
    options.preallocation = Preallocation::Never;
    fill(&folder, &options, digest);
    let table = table(&folder);
    figure::compare(
        "disk_tier_start_1m",
        "blocks/s",
        f64::from(BLOCKS),
        || {
            let manager = tier::manager(&folder, 4096, 8, BLOCKS as usize);
            assert_eq!(manager.disk().unwrap().status().inactive, u64::from(BLOCKS));
        },
        "reading the table alone",
        || read(&table),
    );
}

/// The books of a million blocks, in chains of a thousand.
fn fill(folder: &Path, options: &DiskOptions, digest: [u8; 32]) {
    let (directory, _) = DiskDirectory::open(folder, options.clone()).unwrap();
    let fingerprint = directory.fingerprint(digest, "bench").unwrap();
    let set = directory.current();
    let slots: Vec<u32> = directory.grow(set, BLOCKS).unwrap().collect();
    for some in slots.chunks(1000) {
        let record = |&slot: &u32| {
            let key = |slot: u32| (u128::from(slot) << 64 | (u128::from(slot) + 1)).to_le_bytes();
            let record = DiskRecord {
                key: key(slot),
                group: 0,
                engine: EngineName::default(),
                parent: (slot % 1000 > 0).then(|| key(slot - 1)),
                depth: slot % 1000,
                fingerprint,
                codec: 0,
                stored_len: 4096,
                seal_root: key(slot),
                generation: directory.generation(),
                last_use: u64::from(slot / 1000) + 1,
            };
            (DiskSlot { set, slot }, record)
        };
        directory.write_records(&some.iter().map(record).collect::<Vec<_>>()).unwrap();
    }
}

fn table(folder: &Path) -> PathBuf {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut tables = files.filter(|path| path.extension().is_some_and(|name| name == "table"));
    tables.next().unwrap()
}

fn read(table: &Path) {
    let mut reader = BufReader::with_capacity(4 << 20, File::open(table).unwrap());
    let mut piece = vec![0; 4 << 20];
    while reader.read(&mut piece).unwrap() > 0 {
        black_box(&piece);
    }
}
