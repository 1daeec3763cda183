//! Bare slots of a directory through the I/O engine: no blocks, sums or records.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use dynamo_llm::block_manager::io::{
    IoBuffer, IoDone, IoEngine, IoRequest, IoWork, Lane, PsyncEngine, PsyncOptions,
};
use dynamo_llm::block_manager::storage::disk::{DiskDirectory, DiskOptions, DiskSlot, Geometry};

use crate::figure::{self, Figure, median};
use crate::memory::Part;
use crate::reference::Reference;
use crate::{DEPTH, FILE, MIB, Way};

/// Sets of buffers that go round: a thread that is done finds the next request waiting.
const ROUND: usize = 2 * DEPTH;

/// Buffers of a slot: payload and sums.
type Set = Vec<IoBuffer>;

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
        let slots = directory.grow(set, (FILE / payload) as u32).unwrap();
        let slots = slots.map(|slot| DiskSlot { set, slot }).collect();
        for finding in directory.findings() {
            eprintln!("{finding}");
        }
        Self { directory, all: slots, engine: engine.clone() }
    }

    fn buffers(&self, sets: usize) -> Vec<Set> {
        let place = self.directory.place(self.all[0]).unwrap();
        let parts = |len: u64| Part::many(sets, len as usize).into_iter().map(IoBuffer::from);
        let pairs = parts(place.payload).zip(parts(place.sums));
        pairs.map(|(payload, sums)| vec![payload, sums]).collect()
    }

    /// Reads or writes every slot once, with the sets of buffers going round.
    fn each(&self, lane: Lane, free: &mut Vec<Set>) {
        let (sender, answers) = channel();
        let take = |free: &mut Vec<Set>, wait: bool| {
            if wait || free.is_empty() {
                let done: IoDone = answers.recv().unwrap();
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

pub(crate) fn rates(folder: &Path, mib: usize, reference: &mut Reference) {
    let engine = engine();
    let [stores, loads] = ["slots-stores", "slots-loads"]
        .map(|name| Slots::new(&folder.join(format!("{name}-{mib}")), mib * MIB, &engine));
    let [mut first, mut second] = [stores.buffers(ROUND), loads.buffers(ROUND)];
    loads.each(Lane::Store, &mut second);
    stores.each(Lane::Store, &mut first);
    for way in Way::ALL {
        let mut pass = || {
            let start = Instant::now();
            match way {
                Way::Write => stores.each(Lane::Store, &mut first),
                Way::Read => loads.each(Lane::Load, &mut second),
                Way::Mixed => thread::scope(|scope| {
                    scope.spawn(|| stores.each(Lane::Store, &mut first));
                    loads.each(Lane::Load, &mut second);
                }),
            }
            start.elapsed()
        };
        let ours = || way.rate(&mut pass);
        let name = format!("disk_slots_{}_{mib}mib", way.name());
        let reference_name = reference.name(way);
        figure::compare_rates(&name, "bytes/s", ours, &reference_name, || reference.rate(way));
    }
}

/// 99th percentile of single loads, in seconds.
fn p99(slots: &Slots) -> f64 {
    let mut buffers = slots.buffers(1).pop();
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

/// What stores at full rate do to single loads.
pub(crate) fn tail(folder: &Path) {
    let engine = engine();
    let loads = Slots::new(&folder.join("tail-loads"), MIB, &engine);
    let mut free = loads.buffers(ROUND);
    loads.each(Lane::Store, &mut free);
    let stores = Slots::new(&folder.join("tail-stores"), MIB, &engine);
    let (mut alone, mut mixed) = (Vec::new(), Vec::new());
    for _ in 0..11 {
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
    let figure = Figure { ours: 1.0 / median(mixed), reference: 1.0 / median(alone) };
    figure::print("disk_read_p99_beside_stores", "1/s", figure, "p99 without stores");
}
