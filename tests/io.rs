//! Positioned I/O: exactly one answer, lanes apart, deadlines, sick drives, direct I/O and its
//! absence, partial transfers.
#![allow(clippy::unwrap_used)]

use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use dynamo_llm::block_manager::io::fault::{Crash, FaultVolume, Faults, MemoryVolume, SECTOR};
use dynamo_llm::block_manager::io::{
    AlignedBuffer, Clock, FileOp, Health, HealthOptions, IO_ALIGNMENT, IoBuffer, IoDone, IoEngine,
    IoError, IoFile, IoMode, IoRequest, IoWork, Lane, ManualClock, OpenFile, OsVolume, PsyncEngine,
    PsyncOptions, Staging, StagingBuffer, Volume, read_full, write_full,
};
use proptest::prelude::*;

/// Nothing here takes so long; a test that hangs fails instead.
const AT_MOST: Duration = Duration::from_secs(60);
const RW: OpenFile = create(false);
const DIRECT: OpenFile = create(true);

const fn create(direct: bool) -> OpenFile {
    OpenFile { create: true, write: true, direct }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 7) as u8 ^ (at % 251) as u8 ^ seed).collect()
}

fn aligned(bytes: &[u8]) -> IoBuffer {
    let mut buffer = AlignedBuffer::new(bytes.len());
    buffer.copy_from_slice(bytes);
    buffer.into()
}

/// A request whose answer comes through the channel.
fn request(lane: Lane, work: IoWork) -> (IoRequest, Receiver<IoDone>) {
    let (sender, receiver) = channel();
    let done = Box::new(move |done| sender.send(done).unwrap_or_default());
    (IoRequest { lane, work, deadline: None, done }, receiver)
}

fn read(file: &Arc<dyn IoFile>, offset: u64, len: usize) -> (IoRequest, Receiver<IoDone>) {
    let buffers = vec![AlignedBuffer::new(len).into()];
    request(Lane::Load, IoWork::Read { file: file.clone(), offset, buffers })
}

fn write(file: &Arc<dyn IoFile>, offset: u64, bytes: &[u8]) -> (IoRequest, Receiver<IoDone>) {
    let buffers = vec![aligned(bytes)];
    request(Lane::Store, IoWork::Write { file: file.clone(), offset, buffers })
}

fn run(engine: &PsyncEngine, (request, answer): (IoRequest, Receiver<IoDone>)) -> IoDone {
    engine.submit(request).unwrap();
    let done = answer.recv_timeout(AT_MOST).unwrap();
    assert!(answer.recv_timeout(Duration::ZERO).is_err(), "answered twice");
    done
}

fn options() -> PsyncOptions {
    let mut options = PsyncOptions::default();
    options.load_threads = 2;
    options.store_threads = 2;
    options
}

/// A volume that hangs or fails on command, a file of 1 MiB in it, and an engine on a manual clock.
struct Bench {
    volume: FaultVolume,
    file: Arc<dyn IoFile>,
    clock: Arc<ManualClock>,
    engine: PsyncEngine,
}

impl Bench {
    fn new(change: impl FnOnce(&mut PsyncOptions)) -> Self {
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
    fn await_loads(&self, queued: usize, running: usize) {
        let start = Instant::now();
        while self.engine.depth(Lane::Load) != (queued, running) {
            assert!(start.elapsed() < AT_MOST, "{:?}", self.engine.depth(Lane::Load));
            std::thread::yield_now();
        }
    }

    fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.engine.tick();
    }
}

#[test]
fn what_is_written_is_read_in_both_modes_and_the_buffers_come_back() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for direct in [true, false] {
        let volume = OsVolume::new(folder.path(), direct).unwrap();
        let file = volume.open("file", DIRECT).unwrap();
        match file.mode() {
            IoMode::Direct { alignment } => assert!(direct && *alignment == 4096),
            IoMode::Buffered { reason } => assert!(!reason.is_empty()),
            _ => unreachable!(),
        }
        let engine = PsyncEngine::new(options()).unwrap();
        let [first, second] = [pattern(8192, 1), pattern(4096, 2)];
        let buffers = vec![aligned(&first), aligned(&second)];
        let work = IoWork::Write { file: file.clone(), offset: 4096, buffers };
        let done = run(&engine, request(Lane::Store, work));
        done.result.unwrap();
        assert_eq!(done.buffers[0].bytes(), first, "the same buffers, in order");
        run(&engine, request(Lane::Store, IoWork::Sync { file: file.clone() })).result.unwrap();

        let buffers = vec![AlignedBuffer::new(4096).into(), AlignedBuffer::new(12288).into()];
        let work = IoWork::Read { file: file.clone(), offset: 0, buffers };
        let done = run(&engine, request(Lane::Load, work));
        done.result.unwrap();
        assert!(done.buffers[0].bytes().iter().all(|&byte| byte == 0));
        assert_eq!(done.buffers[1].bytes(), [first, second].concat());
        volume.remove("file").unwrap();
        volume.remove("file").unwrap();
    }
}

#[test]
fn a_file_system_without_direct_io_is_used_through_the_page_cache_and_says_so() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let volume = OsVolume::new(folder.path(), true).unwrap();
    let file = volume.open("file", DIRECT).unwrap();
    // Recent kernels take the flag on tmpfs; whichever it is, the mode is stated and works.
    if let IoMode::Buffered { reason } = file.mode() {
        assert!(reason.contains("file system") || reason.contains("kernel"), "{reason}");
    }
    let bytes = aligned(&pattern(4096, 3));
    write_full(&*file, &[bytes.bytes()], 0).unwrap();
    let mut back = AlignedBuffer::new(4096);
    read_full(&*file, &mut [&mut back], 0).unwrap();
    assert_eq!(&*back, bytes.bytes());
}

#[test]
fn direct_io_refuses_what_is_not_aligned_before_the_system_does() {
    let volume = MemoryVolume::new();
    let file = volume.open("file", DIRECT).unwrap();
    let buffer = AlignedBuffer::new(SECTOR * 2);
    for (bytes, offset) in [(&buffer[..100], 0), (&buffer[..SECTOR], 7), (&buffer[1..=SECTOR], 0)] {
        let error = write_full(&*file, &[bytes], offset).unwrap_err();
        assert!(matches!(error, IoError::Misaligned { alignment: 512, .. }), "{error}");
    }
    assert_eq!(file.len().unwrap(), 0);
}

type Check = fn(&IoError) -> bool;

#[test]
fn errors_name_file_range_and_remedy() {
    let volume = FaultVolume::new(Arc::new(MemoryVolume::new()), Faults::none(1));
    let file = volume.open("blocks", RW).unwrap();
    let cases: [(i32, &str, Check); 6] = [
        (libc::EIO, "health", |error| matches!(error, IoError::Device { .. })),
        (libc::ENOSPC, "free some", |error| matches!(error, IoError::NoSpace { .. })),
        (libc::EDQUOT, "free some", |error| matches!(error, IoError::NoSpace { .. })),
        (libc::EROFS, "mount it", |error| matches!(error, IoError::ReadOnly { .. })),
        (libc::ESTALE, "restore", |error| matches!(error, IoError::Gone { .. })),
        (libc::EMFILE, "code 24", |error| matches!(error, IoError::System { .. })),
    ];
    for (code, remedy, check) in cases {
        volume.set_faults(Faults { errors: 1.0, code, ..Faults::none(1) });
        let error = write_full(&*file, &[&[0; 24]], 48).unwrap_err();
        assert!(check(&error), "{error}");
        let text = error.to_string();
        assert!(text.contains("writing 24 bytes at 48 of memory/blocks"), "{text}");
        assert!(text.contains(remedy), "{text}");
    }
    volume.set_faults(Faults::none(1));
    let error = read_full(&*file, &mut [&mut [0; 8]], 0).unwrap_err();
    assert!(matches!(error, IoError::Short { done: 0, .. }), "{error}");
    assert!(matches!(volume.open("x", OpenFile::default()), Err(IoError::Gone { .. })));
    assert!(matches!(OsVolume::new(Path::new("/nowhere"), true), Err(IoError::Gone { .. })));
}

#[test]
fn memory_that_may_only_be_read_is_not_read_into() {
    #[derive(Debug)]
    struct Shared(Arc<[u8]>);
    impl dynamo_llm::block_manager::io::IoMemory for Shared {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
        fn bytes_mut(&mut self) -> Option<&mut [u8]> {
            None
        }
    }
    let bench = Bench::new(|_| ());
    let file = bench.file.clone();
    let lend = || vec![IoBuffer::Lent(Box::new(Shared(Arc::from(pattern(512, 1)))))];
    let work = IoWork::Write { file: file.clone(), offset: 0, buffers: lend() };
    run(&bench.engine, request(Lane::Store, work)).result.unwrap();
    let work = IoWork::Read { file, offset: 0, buffers: lend() };
    let done = run(&bench.engine, request(Lane::Load, work));
    assert!(matches!(done.result, Err(IoError::NotWritable { index: 0, .. })));
    let IoBuffer::Lent(memory) = done.buffers.into_iter().next().unwrap() else { panic!() };
    let memory: Box<dyn Any> = memory;
    assert_eq!(*memory.downcast::<Shared>().unwrap().0, pattern(512, 1));
}

#[test]
fn a_hung_drive_holds_up_neither_deadlines_nor_the_other_drive_nor_the_end() {
    let bench = Bench::new(|options| options.load_queue = 50);
    bench.volume.stall();
    let until = bench.clock.now() + Duration::from_secs(1);
    let mut answers = Vec::new();
    for _ in 0..52 {
        let (mut request, answer) = read(&bench.file, 0, 4096);
        request.deadline = Some(until);
        // The first two are taken by the threads.
        bench.engine.submit(request).unwrap();
        answers.push(answer);
        bench.await_loads(answers.len().saturating_sub(2), answers.len().min(2));
    }
    let (request, unanswered) = read(&bench.file, 0, 4096);
    let (error, request) = bench.engine.submit(request).unwrap_err();
    assert!(matches!(error, IoError::QueueFull { queued: 50, limit: 50, .. }), "{error}");
    let IoRequest { work, done, .. } = *request;
    assert_eq!(work.into_buffers().len(), 1, "the buffers are handed back");
    drop(done);
    assert!(unanswered.recv_timeout(AT_MOST).is_err());

    bench.pass(Duration::from_secs(1));
    for answer in &answers[2..] {
        let done = answer.recv_timeout(AT_MOST).unwrap();
        assert!(matches!(done.result, Err(IoError::Expired { lane: Lane::Load })));
        assert_eq!(done.buffers.len(), 1);
    }
    let healthy = Bench::new(|_| ());
    run(&healthy.engine, read(&healthy.file, 0, 4096)).result.unwrap();
    // Late ones are refused at the door.
    let (mut request, _answer) = read(&bench.file, 0, 4096);
    request.deadline = Some(until);
    assert!(matches!(bench.engine.submit(request), Err((IoError::Expired { .. }, _))));

    // The engine goes at once; what is under way keeps its buffers until the drive lets go.
    drop(bench.engine);
    assert!(answers[0].recv_timeout(Duration::ZERO).is_err());
    bench.volume.resume();
    for answer in &answers[..2] {
        answer.recv_timeout(AT_MOST).unwrap().result.unwrap();
    }
}

#[test]
fn stores_do_not_hold_up_loads() {
    let bench = Bench::new(|_| ());
    let (gate, opened) = channel::<()>();
    let opened = Arc::new(std::sync::Mutex::new(opened));
    let stores: Vec<_> = (0..20)
        .map(|_| {
            let opened = opened.clone();
            let wait = move || {
                let _ = opened.lock().unwrap().recv();
                Ok(())
            };
            let (request, answer) = request(Lane::Store, IoWork::Call(Box::new(wait)));
            bench.engine.submit(request).unwrap();
            answer
        })
        .collect();
    for _ in 0..20 {
        run(&bench.engine, read(&bench.file, 0, 4096)).result.unwrap();
    }
    drop(gate);
    for answer in stores {
        answer.recv_timeout(AT_MOST).unwrap().result.unwrap();
    }
}

#[test]
fn stores_hold_back_while_loads_are_about_and_still_go_on() {
    let bench = Bench::new(|options| options.hold_back = Duration::from_millis(1));
    let (gate, opened) = channel::<()>();
    let wait = move || {
        let _ = opened.recv();
        Ok(())
    };
    let (load, loaded) = request(Lane::Load, IoWork::Call(Box::new(wait)));
    bench.engine.submit(load).unwrap();
    bench.await_loads(0, 1);
    let under_way = Arc::new(AtomicUsize::new(0));
    let stores: Vec<_> = (0..50)
        .map(|_| {
            let under_way = under_way.clone();
            let store = move || {
                let beside = under_way.fetch_add(1, Ordering::SeqCst);
                std::thread::yield_now();
                under_way.fetch_sub(1, Ordering::SeqCst);
                assert_eq!(beside, 0, "two stores at once");
                Ok(())
            };
            let (request, answer) = request(Lane::Store, IoWork::Call(Box::new(store)));
            bench.engine.submit(request).unwrap();
            answer
        })
        .collect();
    for answer in stores {
        answer.recv_timeout(AT_MOST).unwrap().result.unwrap();
    }
    drop(gate);
    loaded.recv_timeout(AT_MOST).unwrap().result.unwrap();
}

#[test]
fn a_request_that_has_not_begun_can_be_cancelled_and_one_under_way_goes_on() {
    let bench = Bench::new(|options| options.load_threads = 1);
    bench.volume.stall();
    let (first, first_answer) = read(&bench.file, 0, 4096);
    let first = bench.engine.submit(first).unwrap();
    bench.await_loads(0, 1);
    let (second, second_answer) = read(&bench.file, 0, 4096);
    let second = bench.engine.submit(second).unwrap();
    second.cancel();
    second.cancel();
    first.cancel();
    let done = second_answer.recv_timeout(AT_MOST).unwrap();
    assert!(matches!(done.result, Err(IoError::Cancelled { .. })));
    bench.volume.resume();
    first_answer.recv_timeout(AT_MOST).unwrap().result.unwrap();
    drop(bench.engine);
    first.cancel();
}

#[test]
fn a_drive_that_is_stuck_is_left_alone_until_a_trial_comes_back_well() {
    let bench = Bench::new(|options| options.health.failures = 2);
    let health = HealthOptions::default();
    bench.volume.stall();
    let stuck: Vec<_> = (0..2)
        .map(|_| {
            let (request, answer) = read(&bench.file, 0, 4096);
            bench.engine.submit(request).unwrap();
            answer
        })
        .collect();
    bench.await_loads(0, 2);
    let (request, queued) = read(&bench.file, 0, 4096);
    bench.engine.submit(request).unwrap();
    bench.pass(health.stuck_after);
    // What waited is told at once, without a deadline of its own.
    let done = queued.recv_timeout(AT_MOST).unwrap();
    assert!(matches!(done.result, Err(IoError::Sick { lane: Lane::Load, .. })));
    assert!(matches!(bench.engine.health(Lane::Load), Health::Sick { .. }));
    assert_eq!(bench.engine.health(Lane::Store), Health::Good);
    let (request, _) = read(&bench.file, 0, 4096);
    let (error, _) = bench.engine.submit(request).unwrap_err();
    assert!(error.to_string().contains("under way for"), "{error}");

    bench.volume.resume();
    for answer in stuck {
        answer.recv_timeout(AT_MOST).unwrap().result.unwrap();
    }
    assert!(matches!(bench.engine.health(Lane::Load), Health::Sick { .. }));
    bench.clock.advance(health.probe_after);
    run(&bench.engine, read(&bench.file, 0, 4096)).result.unwrap();
    assert_eq!(bench.engine.health(Lane::Load), Health::Good);
}

#[test]
fn failures_in_a_row_make_a_lane_sick_and_a_full_drive_does_not() {
    let bench = Bench::new(|_| ());
    let failures = HealthOptions::default().failures;
    let fail = |code, only| {
        bench.volume.set_faults(Faults { errors: 1.0, code, only, ..Faults::none(1) });
    };
    fail(libc::ENOSPC, Some(FileOp::Write));
    for _ in 0..failures * 2 {
        let done = run(&bench.engine, write(&bench.file, 0, &[0; 512]));
        assert!(matches!(done.result, Err(IoError::NoSpace { .. })));
    }
    assert_eq!(bench.engine.health(Lane::Store), Health::Good);
    // Remounted read-only: stores are off, loads go on.
    fail(libc::EROFS, Some(FileOp::Write));
    for _ in 0..failures {
        run(&bench.engine, write(&bench.file, 0, &[0; 512])).result.unwrap_err();
    }
    let (request, _) = write(&bench.file, 0, &[0; 512]);
    assert!(matches!(bench.engine.submit(request), Err((IoError::Sick { .. }, _))));
    run(&bench.engine, read(&bench.file, 0, 4096)).result.unwrap();
}

#[test]
fn a_panic_in_a_call_or_a_callback_costs_no_thread() {
    let bench = Bench::new(|options| options.store_threads = 1);
    let panics = IoWork::Call(Box::new(|| panic!("on purpose")));
    let done = run(&bench.engine, request(Lane::Store, panics));
    assert!(matches!(done.result, Err(IoError::Panicked { lane: Lane::Store })));
    let (mut request, _) = write(&bench.file, 0, &[0; 512]);
    request.done = Box::new(|_| panic!("on purpose"));
    bench.engine.submit(request).unwrap();
    run(&bench.engine, write(&bench.file, 0, &[0; 512])).result.unwrap();
}

#[test]
fn an_engine_without_threads_or_queues_is_refused() {
    let mut options = PsyncOptions::default();
    options.store_queue = 0;
    let error = PsyncEngine::new(options).unwrap_err();
    assert!(error.to_string().contains("store_queue: 0"), "{error}");
}

#[test]
fn staging_never_waits_and_gets_its_buffers_back() {
    let staging = Staging::new(3, 4096);
    let taken: Vec<StagingBuffer> = (0..3).map(|_| staging.take().unwrap()).collect();
    assert!(staging.take().is_none());
    assert!(taken.iter().all(|buffer| buffer.as_ptr().addr().is_multiple_of(IO_ALIGNMENT)));
    let bench = Bench::new(|_| ());
    let buffers = taken.into_iter().map(IoBuffer::from).collect();
    let work = IoWork::Read { file: bench.file.clone(), offset: 0, buffers };
    let done = run(&bench.engine, request(Lane::Load, work));
    assert_eq!(staging.available(), 0, "still with the answer");
    drop(done);
    assert_eq!(staging.available(), 3);
}

proptest! {
    /// Short transfers, at any rate, change nothing but the number of calls.
    #[test]
    fn partial_transfers_are_carried_on(
        seed: u64,
        lens in prop::collection::vec(1_usize..40, 1..6),
        offset in 0_u64..10,
        direct: bool,
    ) {
        let memory = Arc::new(MemoryVolume::new());
        let faults = Faults { shorts: 0.5, ..Faults::none(seed) };
        let volume = FaultVolume::new(memory, faults);
        let file = volume.open("file", create(direct)).unwrap();
        let buffers: Vec<_> = lens.iter().map(|&n| aligned(&pattern(n * SECTOR, n as u8))).collect();
        let slices: Vec<&[u8]> = buffers.iter().map(IoBuffer::bytes).collect();
        let offset = offset * SECTOR as u64;
        // A transfer of one unit cannot be halved: then it stops, and says where.
        match write_full(&*file, &slices, offset) {
            Ok(()) => {}
            Err(IoError::Short { .. }) => return Ok(()),
            Err(error) => panic!("{error}"),
        }
        volume.set_faults(Faults::none(seed));
        let mut back: Vec<_> = lens.iter().map(|&n| AlignedBuffer::new(n * SECTOR)).collect();
        let mut targets: Vec<&mut [u8]> = back.iter_mut().map(|buffer| &mut **buffer).collect();
        read_full(&*file, &mut targets, offset).unwrap();
        for (back, sent) in back.iter().zip(&slices) {
            prop_assert_eq!(&**back, *sent);
        }
    }

    /// After a power failure a sector holds its synced bytes or a later version; synced is synced.
    #[test]
    fn the_memory_volume_loses_only_what_was_not_synced(
        writes in prop::collection::vec((0_u64..8, any::<u8>(), any::<bool>()), 1..40),
        seed: u64,
    ) {
        let volume = MemoryVolume::new();
        let file = volume.open("file", RW).unwrap();
        volume.sync().unwrap();
        let mut possible = vec![vec![0_u8]; 8];
        file.set_len(8 * SECTOR as u64).unwrap();
        file.sync_data().unwrap();
        for &(sector, byte, sync) in &writes {
            write_full(&*file, &[&[byte; SECTOR]], sector * SECTOR as u64).unwrap();
            possible[sector as usize].push(byte);
            if sync {
                file.sync_data().unwrap();
                for versions in &mut possible {
                    versions.drain(..versions.len() - 1);
                }
            }
        }
        let read = |crash| {
            let file = volume.after(crash).open("file", OpenFile::default()).unwrap();
            let mut bytes = vec![0; 8 * SECTOR];
            read_full(&*file, &mut [&mut bytes], 0).unwrap();
            bytes
        };
        for (sector, bytes) in read(Crash::Power { seed }).chunks(SECTOR).enumerate() {
            prop_assert!(bytes.iter().all(|byte| *byte == bytes[0]));
            prop_assert!(possible[sector].contains(&bytes[0]));
        }
        for (sector, bytes) in read(Crash::Kill).chunks(SECTOR).enumerate() {
            prop_assert_eq!(Some(&bytes[0]), possible[sector].last());
        }
    }
}
