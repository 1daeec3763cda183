//! Requests, and an engine over a drive that hangs or fails on command.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use dynamo_llm::block_manager::io::fault::{FaultVolume, Faults, MemoryVolume};
use dynamo_llm::block_manager::io::{
    AlignedBuffer, IoBuffer, IoDone, IoEngine, IoFile, IoRequest, IoWork, Lane, ManualClock,
    OpenFile, PsyncEngine, PsyncOptions, Volume,
};

/// Nothing here takes so long; a test that hangs fails instead.
pub(crate) const AT_MOST: Duration = Duration::from_secs(60);
pub(crate) const RW: OpenFile = create(false);
pub(crate) const DIRECT: OpenFile = create(true);

pub(crate) const fn create(direct: bool) -> OpenFile {
    OpenFile { create: true, write: true, direct }
}

pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 7) as u8 ^ (at % 251) as u8 ^ seed).collect()
}

pub(crate) fn aligned(bytes: &[u8]) -> IoBuffer {
    let mut buffer = AlignedBuffer::new(bytes.len());
    buffer.copy_from_slice(bytes);
    buffer.into()
}

/// A request whose answer comes through the channel.
pub(crate) fn request(lane: Lane, work: IoWork) -> (IoRequest, Receiver<IoDone>) {
    let (sender, receiver) = channel();
    let done = Box::new(move |done| sender.send(done).unwrap_or_default());
    (IoRequest { lane, work, deadline: None, done }, receiver)
}

pub(crate) fn read(
    file: &Arc<dyn IoFile>,
    offset: u64,
    len: usize,
) -> (IoRequest, Receiver<IoDone>) {
    let buffers = vec![AlignedBuffer::new(len).into()];
    request(Lane::Load, IoWork::Read { file: file.clone(), offset, buffers })
}

pub(crate) fn write(
    file: &Arc<dyn IoFile>,
    offset: u64,
    bytes: &[u8],
) -> (IoRequest, Receiver<IoDone>) {
    let buffers = vec![aligned(bytes)];
    request(Lane::Store, IoWork::Write { file: file.clone(), offset, buffers })
}

pub(crate) fn run(
    engine: &PsyncEngine,
    (request, answer): (IoRequest, Receiver<IoDone>),
) -> IoDone {
    engine.submit(request).unwrap();
    let done = answer.recv_timeout(AT_MOST).unwrap();
    assert!(answer.recv_timeout(Duration::ZERO).is_err(), "answered twice");
    done
}

pub(crate) fn options() -> PsyncOptions {
    let mut options = PsyncOptions::default();
    options.load_threads = 2;
    options.store_threads = 2;
    options
}

/// A volume that hangs or fails on command, a file of 1 MiB in it, and an engine on a manual clock.
pub(crate) struct Bench {
    pub(crate) volume: FaultVolume,
    pub(crate) file: Arc<dyn IoFile>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) engine: PsyncEngine,
}

impl Bench {
    pub(crate) fn new(change: impl FnOnce(&mut PsyncOptions)) -> Self {
        let volume = FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1));
        let file = volume.open("file", RW).unwrap();
        file.set_len(1 << 20).unwrap();
        let clock = Arc::new(ManualClock::new());
        let mut options = options();
        options.clock = clock.clone();
        change(&mut options);
        let engine = PsyncEngine::new(options).unwrap();
        Self { volume, file, clock, engine }
    }

    /// Waits until so many loads are queued, and under way.
    pub(crate) fn await_loads(&self, queued: usize, running: usize) {
        let start = Instant::now();
        while self.engine.depth(Lane::Load) != (queued, running) {
            assert!(start.elapsed() < AT_MOST, "{:?}", self.engine.depth(Lane::Load));
            std::thread::yield_now();
        }
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.engine.tick();
    }
}
