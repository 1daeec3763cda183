//! Slots of a directory through the I/O engine beside a plain loop of direct reads and writes, and
//! opening a directory with a million records beside reading its table.
//!
//! Both sides move the same bytes in the same pieces on as many threads, to files of the same size in
//! the same folder (`DYNAMO_BENCH_DIR`, else the build folder). One figure is the latency of single
//! loads while stores run at full rate, beside the same without stores. The same again through a
//! whole manager: blocks that are sealed, recorded, verified and registered; and starting one over a
//! million blocks.
#![allow(missing_docs, clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

mod figure;

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{BufReader, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use dynamo_llm::block_manager::io::{
    AlignedBuffer, IoBuffer, IoEngine, IoRequest, IoWork, Lane, PsyncEngine, PsyncOptions,
};
use dynamo_llm::block_manager::storage::disk::{
    DiskDirectory, DiskOptions, DiskRecord, DiskSlot, EngineName, Geometry, Preallocation, inspect,
};
use dynamo_llm::block_manager::{
    EvictionMode, KvBlockManager, KvBlockManagerConfig, KvManagerModelConfig, OnboardOptions,
    Registration, SequenceHash, Tier,
    config::{Capacity, Config, LayoutKind, OffloadPolicy},
};
use dynamo_llm::common::dtype::DType;

const MIB: usize = 1 << 20;
/// Requests at the drive at once, on both sides.
const DEPTH: usize = 8;
/// Sets of buffers that go round in ours: a thread that is done finds the next request waiting.
const ROUND: usize = 2 * DEPTH;
/// Bytes that one measured call moves.
const CALL: usize = 128 * MIB;

/// Some slots of a directory, and an engine.
struct Slots {
    directory: DiskDirectory,
    all: Vec<DiskSlot>,
    engine: Arc<PsyncEngine>,
}

impl Slots {
    fn new(folder: &Path, payload: usize, engine: &Arc<PsyncEngine>) -> Self {
        let geometry = Geometry::new(payload as u64, (payload / (256 << 10)) as u32).unwrap();
        let options = DiskOptions::new(u64::MAX, geometry);
        let (directory, _) = DiskDirectory::open(folder, options).unwrap();
        let set = directory.current();
        let slots = directory.grow(set, (CALL / payload) as u32).unwrap();
        let slots = slots.map(|slot| DiskSlot { set, slot }).collect();
        for finding in directory.findings() {
            eprintln!("{finding}");
        }
        Self { directory, all: slots, engine: engine.clone() }
    }

    fn buffers(&self) -> Vec<IoBuffer> {
        let place = self.directory.place(self.all[0]).unwrap();
        [place.payload, place.sums].map(|len| filled(len as usize).into()).into()
    }

    /// Reads or writes every slot once, with `ROUND` sets of buffers going round.
    fn each(&self, lane: Lane, free: &mut Vec<Vec<IoBuffer>>) {
        let (sender, answers) = channel();
        let take = |free: &mut Vec<Vec<IoBuffer>>, wait: bool| {
            if wait || free.is_empty() {
                let done: dynamo_llm::block_manager::io::IoDone = answers.recv().unwrap();
                done.result.unwrap();
                free.push(done.buffers);
            }
        };
        for &slot in &self.all {
            take(free, false);
            let place = self.directory.place(slot).unwrap();
            let (file, offset, buffers) = (place.file, place.offset, free.pop().unwrap());
            let work = match lane {
                Lane::Load => IoWork::Read { file, offset, buffers },
                Lane::Store => IoWork::Write { file, offset, buffers },
            };
            let sender = sender.clone();
            let done = Box::new(move |done| sender.send(done).unwrap());
            self.engine.submit(IoRequest { lane, work, deadline: None, done }).unwrap();
        }
        while free.len() < ROUND {
            take(free, true);
        }
    }
}

fn engine() -> Arc<PsyncEngine> {
    let mut options = PsyncOptions::default();
    (options.load_threads, options.store_threads) = (DEPTH, DEPTH);
    Arc::new(PsyncEngine::new(options).unwrap())
}

fn filled(len: usize) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::new(len);
    let mut state = 1_u64;
    for word in buffer.chunks_exact_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        word.copy_from_slice(&state.to_le_bytes());
    }
    buffer
}

/// A plain file, opened like that of the directory.
struct Plain {
    file: File,
    piece: usize,
    count: usize,
}

impl Plain {
    fn new(folder: &Path, piece: usize, count: usize) -> Self {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let path = folder.join("plain");
        let direct = options.clone().custom_flags(libc::O_DIRECT).open(&path);
        let file = direct.or_else(|_| options.open(&path)).unwrap();
        rustix::fs::fallocate(
            &file,
            rustix::fs::FallocateFlags::empty(),
            0,
            (piece * count) as u64,
        )
        .unwrap();
        Self { file, piece, count }
    }

    fn each(&self, write: bool, buffers: &mut [AlignedBuffer]) {
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for buffer in buffers {
                scope.spawn(|| {
                    let buffer = buffer;
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        if at >= self.count {
                            return;
                        }
                        let offset = (at * self.piece) as u64;
                        if write {
                            self.file.write_all_at(buffer, offset).unwrap();
                        } else {
                            self.file.read_exact_at(buffer, offset).unwrap();
                        }
                    }
                });
            }
        });
    }
}

fn rates(folder: &Path, mib: usize) {
    let ours = Slots::new(&folder.join(format!("{mib}")), mib * MIB, &engine());
    let place = ours.directory.place(ours.all[0]).unwrap();
    let piece = (place.payload + place.sums) as usize;
    let plain = Plain::new(folder, piece, ours.all.len());
    let mut free: Vec<_> = (0..ROUND).map(|_| ours.buffers()).collect();
    let mut buffers: Vec<_> = (0..DEPTH).map(|_| filled(piece)).collect();
    let bytes = (ours.all.len() * piece) as f64;
    for (name, lane) in [("write", Lane::Store), ("read", Lane::Load)] {
        figure::compare(
            &format!("disk_{name}_{mib}mib"),
            "bytes/s",
            bytes,
            || ours.each(lane, &mut free),
            "a loop of direct I/O on as many threads",
            || plain.each(lane == Lane::Store, &mut buffers),
        );
    }
}

/// 99th percentile of single loads, in seconds.
fn p99(slots: &Slots) -> f64 {
    let mut buffers = Some(slots.buffers());
    let mut took = Vec::new();
    for at in 0..400 {
        let slot = slots.all[at * 7 % slots.all.len()];
        let place = slots.directory.place(slot).unwrap();
        let (sender, answer) = channel();
        let buffers_in = buffers.take().unwrap();
        let work = IoWork::Read { file: place.file, offset: place.offset, buffers: buffers_in };
        let done = Box::new(move |done| sender.send(done).unwrap());
        let start = Instant::now();
        let request = IoRequest { lane: Lane::Load, work, deadline: None, done };
        slots.engine.submit(request).unwrap();
        let done = answer.recv().unwrap();
        took.push(start.elapsed());
        done.result.unwrap();
        buffers = Some(done.buffers);
    }

    took.sort();
    took[took.len() * 99 / 100].as_secs_f64()
}

fn tail(folder: &Path) {
    let engine = engine();
    let loads = Slots::new(&folder.join("loads"), MIB, &engine);
    let mut free: Vec<_> = (0..ROUND).map(|_| loads.buffers()).collect();
    loads.each(Lane::Store, &mut free);
    let stores = Slots::new(&folder.join("stores"), MIB, &engine);
    let (mut alone, mut mixed) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        alone.push(p99(&loads));
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    stores.each(Lane::Store, &mut free);
                }
            });
            thread::sleep(Duration::from_millis(50));
            mixed.push(p99(&loads));
            stop.store(true, Ordering::Relaxed);
        });
    }
    let [alone, mixed] = [alone, mixed].map(|mut values| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    });
    let line = serde_json::json!({
        "bench": "disk_read_p99_beside_stores",
        "ours": 1.0 / mixed,
        "reference": 1.0 / alone,
        "reference_name": "p99 without stores",
        "unit": "1/s",
        "ratio": alone / mixed,
    });
    println!("{line}");
}

fn recovery(folder: &Path) {
    const RECORDS: u32 = 1_000_000;
    let folder = folder.join("recovery");
    let mut options = DiskOptions::new(u64::MAX, Geometry::new(4096, 0).unwrap());
    options.preallocation = Preallocation::Never;
    let (directory, _) = DiskDirectory::open(&folder, options.clone()).unwrap();
    let fingerprint = directory.fingerprint([1; 32], "bench").unwrap();
    let set = directory.current();
    let slots: Vec<u32> = directory.grow(set, RECORDS).unwrap().collect();
    for some in slots.chunks(1000) {
        let record = |&slot: &u32| {
            let mut key = [0; 16];
            key[..4].copy_from_slice(&slot.wrapping_mul(0x9e37_79b1).to_le_bytes());
            let record = DiskRecord {
                key,
                group: 0,
                engine: EngineName::new(&[5; 36]).unwrap(),
                parent: Some(key),
                depth: slot,
                fingerprint,
                codec: 0,
                stored_len: 4096,
                seal_root: key,
                generation: directory.generation(),
                last_use: 1,
            };
            (DiskSlot { set, slot }, record)
        };
        directory.write_records(&some.iter().map(record).collect::<Vec<_>>()).unwrap();
    }
    drop(directory);
    let table: PathBuf = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "table"))
        .unwrap();
    figure::compare(
        "disk_recovery_1m",
        "records/s",
        f64::from(RECORDS),
        || {
            let (_, recovered) = DiskDirectory::open(&folder, options.clone()).unwrap();
            assert_eq!(recovered.blocks.len(), RECORDS as usize);
        },
        "reading the table alone",
        || {
            let mut reader = BufReader::with_capacity(4 << 20, File::open(&table).unwrap());
            let mut piece = vec![0; 4 << 20];
            while reader.read(&mut piece).unwrap() > 0 {
                black_box(&piece);
            }
        },
    );
}

/// A manager with a device tier of `blocks` blocks, each a run of pages, and a disk tier.
fn manager(folder: &Path, bytes: usize, blocks: usize, on_disk: usize) -> KvBlockManager {
    let mut settings = Config::default();
    settings.model = KvManagerModelConfig::builder()
        .num_layers(1)
        .outer_dim(1)
        .page_size((bytes / 4096).max(1))
        .inner_dim(2048)
        .dtype(DType::FP16)
        .build();
    settings.device.capacity = Capacity::Blocks(blocks);
    settings.device.layout = LayoutKind::Paged;
    settings.device.prefault = true;
    settings.host.capacity = Capacity::Blocks(0);
    settings.disk.dir = Some(folder.to_str().unwrap().to_owned());
    settings.disk.capacity = Capacity::Blocks(on_disk);
    settings.disk.io_threads = DEPTH;
    settings.offload.policy = OffloadPolicy::Manual;
    let mut io = PsyncOptions::default();
    (io.load_threads, io.store_threads) = (DEPTH, DEPTH);
    let config = KvBlockManagerConfig::builder().settings(settings).disk_io(io).build().unwrap();
    KvBlockManager::new_blocking(config).unwrap()
}

/// Registers a chain on the device under names that nobody has used, and stores it.
fn store(manager: &KvBlockManager, blocks: usize, names: &mut u128) -> Vec<SequenceHash> {
    let device = manager.device().unwrap();
    let names = (0..blocks).map(|_| {
        *names += 1;
        SequenceHash::from_u128(*names << 64 | *names)
    });
    let names: Vec<SequenceHash> = names.collect();
    let slots = device.allocate_slots(blocks).unwrap();
    let held = device.register_slots(slots, &Registration::chain(&names, 0, None)).unwrap();
    let results = manager.offload_slots_to(&held, Tier::Disk).unwrap().wait(None).unwrap();
    assert!(results.iter().all(Result::is_ok));
    names
}

/// What whole blocks cost: sums, records, pools and all.
fn sealed(folder: &Path, mib: usize) {
    let count = CALL / (mib * MIB);
    let manager = manager(&folder.join(format!("sealed{mib}")), mib * MIB, count, 2 * count);
    let plain = Plain::new(folder, mib * MIB, count);
    let mut buffers: Vec<_> = (0..DEPTH).map(|_| filled(mib * MIB)).collect();
    let mut names = 0;
    // The files have their room and the memory its pages before anything is measured.
    store(&manager, count, &mut names);
    store(&manager, count, &mut names);
    let device = manager.device().unwrap();
    figure::compare(
        &format!("disk_tier_store_{mib}mib"),
        "bytes/s",
        CALL as f64,
        || drop(store(&manager, count, &mut names)),
        "a loop of direct I/O on as many threads",
        || plain.each(true, &mut buffers),
    );
    let stored = store(&manager, count, &mut names);
    figure::compare(
        &format!("disk_tier_load_{mib}mib"),
        "bytes/s",
        CALL as f64,
        || {
            device.trigger_eviction_blocking(EvictionMode::Aggressive).unwrap();
            let found = manager.lookup(&stored).unwrap();
            let arrived = manager.onboard_slots(found, OnboardOptions::default()).unwrap();
            assert_eq!(arrived.len(), count);
        },
        "a loop of direct I/O on as many threads",
        || plain.each(false, &mut buffers),
    );
}

/// From nothing to a manager that finds a million blocks.
fn restart(folder: &Path) {
    const BLOCKS: usize = 1_000_000;
    let folder = folder.join("restart");
    drop(manager(&folder, 4096, 8, BLOCKS));
    // The books of a million blocks, under the fingerprint that the manager has entered.
    let digest = inspect(&folder).unwrap().fingerprints[0].digest;
    let geometry = Geometry::new(4096, 1).unwrap();
    let mut options = DiskOptions::new(u64::MAX, geometry);
    options.preallocation = Preallocation::Never;
    let (directory, _) = DiskDirectory::open(&folder, options).unwrap();
    let fingerprint = directory.fingerprint(digest, "").unwrap();
    let set = directory.current();
    let slots: Vec<u32> = directory.grow(set, BLOCKS as u32).unwrap().collect();
    for some in slots.chunks(1000) {
        let record = |&slot: &u32| {
            let key = (u128::from(slot) << 64 | (u128::from(slot) + 1)).to_le_bytes();
            let parent = u128::from(slot.wrapping_sub(1)) << 64 | u128::from(slot);
            let record = DiskRecord {
                key,
                group: 0,
                engine: EngineName::default(),
                // Chains of a thousand.
                parent: (slot % 1000 > 0).then(|| parent.to_le_bytes()),
                depth: slot % 1000,
                fingerprint,
                codec: 0,
                stored_len: 4096,
                seal_root: key,
                generation: directory.generation(),
                last_use: u64::from(slot / 1000) + 1,
            };
            (DiskSlot { set, slot }, record)
        };
        directory.write_records(&some.iter().map(record).collect::<Vec<_>>()).unwrap();
    }
    drop(directory);
    let table: PathBuf = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "table"))
        .unwrap();
    figure::compare(
        "disk_tier_start_1m",
        "blocks/s",
        BLOCKS as f64,
        || {
            let manager = manager(&folder, 4096, 8, BLOCKS);
            assert_eq!(manager.disk().unwrap().status().inactive, BLOCKS as u64);
        },
        "reading the table alone",
        || {
            let mut reader = BufReader::with_capacity(4 << 20, File::open(&table).unwrap());
            let mut piece = vec![0; 4 << 20];
            while reader.read(&mut piece).unwrap() > 0 {
                black_box(&piece);
            }
        },
    );
}

fn main() {
    if !figure::wanted() {
        return;
    }
    let base = std::env::var_os("DYNAMO_BENCH_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let folder = tempfile::tempdir_in(base).unwrap();
    // Names after `--` choose; none means all.
    let names: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let chosen = |name: &str| names.is_empty() || names.iter().any(|one| one == name);
    for mib in [1, 2] {
        if chosen("rates") {
            rates(folder.path(), mib);
        }
    }
    for mib in [1, 2] {
        if chosen("sealed") {
            sealed(folder.path(), mib);
        }
    }
    if chosen("tail") {
        tail(folder.path());
    }
    if chosen("recovery") {
        recovery(folder.path());
    }
    if chosen("restart") {
        restart(folder.path());
    }
}
