//! Engines and what they are given, below the manager.

#![allow(clippy::unwrap_used, unsafe_code)]

use std::{
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    time::{Duration, Instant},
};

use dynamo_llm::{
    block_manager::{
        LayoutType, StorageError, TransferError,
        layout::{BlockLayout, LayoutConfig},
        seal::Crc,
        storage::{
            NullAllocator, NullStorage, Storage, StorageAccess, StorageAllocator, SystemAllocator,
            SystemStorage,
        },
        transfer::{
            BlockMemory, BlockPair, Corruption, FaultEngine, Faults, HostEngine, Job, Reports,
            Ticket, TransferEngine, TransferPlan,
        },
    },
    common::dtype::DType,
};
use proptest::prelude::*;

const LONG: Duration = Duration::from_secs(20);
type Report = Result<Box<[u64]>, TransferError>;

fn layout(kind: &LayoutType, blocks: usize, shape: [usize; 4]) -> BlockLayout {
    let [layers, outer, page, inner] = shape;
    let config = LayoutConfig::builder()
        .num_blocks(blocks)
        .num_layers(layers)
        .outer_dim(outer)
        .page_size(page)
        .inner_dim(inner)
        .dtype(DType::UINT8)
        .build();
    BlockLayout::new(config, kind).unwrap()
}

fn memory_of(layout: BlockLayout, allocator: &dyn StorageAllocator) -> Arc<BlockMemory> {
    let sizes = layout.storage_sizes().to_vec();
    let storages = sizes.iter().map(|&size| allocator.allocate(size).unwrap()).collect();
    Arc::new(BlockMemory::new(layout, storages).unwrap())
}

fn memory(kind: &LayoutType, blocks: usize, shape: [usize; 4]) -> Arc<BlockMemory> {
    memory_of(layout(kind, blocks, shape), &SystemAllocator)
}

/// The bytes of a block in canonical order.
fn read(memory: &BlockMemory, block: usize) -> Vec<u8> {
    let layout = memory.layout();
    let spans = layout.spans(block, 0..layout.num_layers()).unwrap();
    // SAFETY: nothing copies while a test reads.
    let bytes = spans.flat_map(|span| unsafe {
        memory.storages()[span.storage].slice(span.offset, span.len).unwrap().to_vec()
    });
    bytes.collect()
}

fn fill(memory: &BlockMemory, block: usize, seed: u64) {
    let layout = memory.layout();
    let mut at = seed;
    for span in layout.spans(block, 0..layout.num_layers()).unwrap() {
        // SAFETY: nothing copies while a test writes.
        let bytes = unsafe { memory.storages()[span.storage].slice_mut(span.offset, span.len) };
        for byte in bytes.unwrap() {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (at >> 56) as u8;
        }
    }
}

/// Sends every report into a channel.
struct Told(Mutex<Sender<(usize, Report)>>);

impl Reports for Told {
    fn report(&self, index: usize, report: Report) {
        let _ = self.0.lock().unwrap().send((index, report));
    }
}

fn job(
    from: &Arc<BlockMemory>,
    to: &Arc<BlockMemory>,
    pairs: &[(u32, u32)],
    ticket: Ticket,
) -> (Job, Receiver<(usize, Report)>) {
    let pairs = pairs.iter().map(|&(from, to)| BlockPair { from, to }).collect();
    // SAFETY: no test touches the slots before it has the reports.
    let plan = unsafe { TransferPlan::new(from.clone(), to.clone(), pairs) }.unwrap();
    let (sender, receiver) = channel();
    (Job::new(plan, Arc::new(ticket), Arc::new(Told(Mutex::new(sender)))), receiver)
}

/// All reports, in the order of the plan.
fn reports(receiver: &Receiver<(usize, Report)>, count: usize) -> Vec<Report> {
    let mut all: Vec<Option<Report>> = vec![None; count];
    for _ in 0..count {
        let (index, report) = receiver.recv_timeout(LONG).unwrap();
        assert!(all[index].replace(report).is_none(), "pair {index} was reported twice");
    }
    assert!(receiver.try_recv().is_err());
    all.into_iter().flatten().collect()
}

fn kinds() -> impl Strategy<Value = LayoutType> {
    prop_oneof![
        Just(LayoutType::FullyContiguous),
        Just(LayoutType::Paged),
        Just(LayoutType::LayerSeparate { outer_contiguous: true }),
        Just(LayoutType::LayerSeparate { outer_contiguous: false }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn bytes_and_sums_are_right_between_any_two_layouts(
        from_kind in kinds(),
        to_kind in kinds(),
        layers in 1..4_usize,
        outer in 1..3_usize,
        page in 1..40_usize,
        inner in 1..200_usize,
        order in Just((0..6_u32).collect::<Vec<_>>()).prop_shuffle(),
        threads in 1..4_usize,
    ) {
        let shape = [layers, outer, page, inner];
        let (from, to) = (memory(&from_kind, 6, shape), memory(&to_kind, 6, shape));
        (0..6).for_each(|block| fill(&from, block, block as u64 + 1));
        let engine = HostEngine::new("test", threads, 64);
        let pairs: Vec<_> = (0..5).zip(order).collect();
        let (job, told) = job(&from, &to, &pairs, Ticket::default());
        prop_assert!(engine.submit(job).is_ok());
        for (&(source, target), report) in pairs.iter().zip(reports(&told, 5)) {
            let bytes = read(&from, source as usize);
            prop_assert_eq!(&bytes, &read(&to, target as usize));
            let region = from.layout().region_bytes();
            let sums: Vec<u64> = bytes.chunks(region).map(Crc::of).collect();
            prop_assert_eq!(&*report.unwrap(), &sums[..]);
        }
    }

    #[test]
    fn faults_follow_from_their_seed(seed: u64) {
        let run = || {
            let (from, to) = pair();
            let faults = Faults { errors: 0.3, flips: 0.3, tears: 0.3, ..Faults::none(seed) };
            let engine = FaultEngine::new(Arc::new(HostEngine::new("test", 2, 64)), faults);
            let (job, told) = job(&from, &to, &[(0, 3), (1, 2), (2, 1), (3, 0)], Ticket::default());
            assert!(engine.submit(job).is_ok());
            let told = reports(&told, 4);
            (told, (0..4).map(|block| read(&to, block)).collect::<Vec<_>>(), engine.injected())
        };
        prop_assert_eq!(run(), run());
    }
}

fn pair() -> (Arc<BlockMemory>, Arc<BlockMemory>) {
    let make = || memory(&LayoutType::FullyContiguous, 4, [2, 2, 4, 16]);
    let (from, to) = (make(), make());
    (0..4).for_each(|block| fill(&from, block, block as u64 + 1));
    (from, to)
}

#[test]
fn large_regions_are_summed_tile_by_tile() {
    let shape = [1, 2, 1024, 700];
    let kind = LayoutType::LayerSeparate { outer_contiguous: true };
    let (from, to) = (memory(&kind, 1, shape), memory(&LayoutType::Paged, 1, shape));
    fill(&from, 0, 7);
    let engine = HostEngine::new("test", 1, 64);
    let (job, told) = job(&from, &to, &[(0, 0)], Ticket::default());
    assert!(engine.submit(job).is_ok());
    let sums = reports(&told, 1).remove(0).unwrap();
    let bytes = read(&to, 0);
    let tiles = bytes.chunks(1024 * 700).flat_map(|region| region.chunks(256 * 1024));
    assert!(tiles.map(Crc::of).eq(sums.iter().copied()));
    assert_eq!(sums.len(), 6);
}

#[test]
fn a_stopped_ticket_is_reported_and_nothing_is_copied() {
    let (from, to) = pair();
    let engine = HostEngine::new("test", 1, 64);
    let before = read(&to, 0);
    let cancelled = Ticket::default();
    cancelled.cancel();
    let late = Ticket::new(Some(Instant::now()));
    for (ticket, reason) in
        [(cancelled, TransferError::Cancelled), (late, TransferError::DeadlineExceeded)]
    {
        let (job, told) = job(&from, &to, &[(1, 0), (2, 1)], ticket);
        assert!(engine.submit(job).is_ok());
        assert!(reports(&told, 2).iter().all(|report| *report == Err(reason.clone())));
    }
    assert_eq!(read(&to, 0), before);
}

/// Says when it is called and holds the engine's thread until it is let go.
struct Gate {
    reached: Mutex<Sender<()>>,
    open: Mutex<Receiver<()>>,
}

impl Reports for Gate {
    fn report(&self, _: usize, _: Report) {
        let _ = self.reached.lock().unwrap().send(());
        let _ = self.open.lock().unwrap().recv_timeout(LONG);
    }
}

/// Keeps the one thread of an engine busy until what comes back is dropped.
fn occupy(engine: &HostEngine, from: &Arc<BlockMemory>, to: &Arc<BlockMemory>) -> Sender<()> {
    let (plan, ticket, _) = job(from, to, &[(3, 3)], Ticket::default()).0.into_parts();
    let ((reached, is_reached), (opener, open)) = (channel(), channel());
    let gate = Gate { reached: Mutex::new(reached), open: Mutex::new(open) };
    assert!(engine.submit(Job::new(plan, ticket, Arc::new(gate))).is_ok());
    is_reached.recv_timeout(LONG).unwrap();
    opener
}

#[test]
fn an_idle_engine_takes_a_job_of_any_size_and_a_busy_one_keeps_its_limit() {
    let (from, to) = pair();
    let engine = HostEngine::new("test", 1, 2);
    let open = occupy(&engine, &from, &to);
    let (big, big_told) = job(&from, &to, &[(0, 0), (1, 1), (2, 2)], Ticket::default());
    assert!(engine.submit(big).is_ok());
    let (more, more_told) = job(&from, &to, &[(0, 0)], Ticket::default());
    let Err((error, more)) = engine.submit(more) else { panic!("past the limit") };
    assert_eq!(
        error.to_string(),
        "test: 3 blocks queued of at most 2; slow down or raise the limit"
    );
    assert!(more_told.try_recv().is_err(), "a refused job is untouched and unreported");
    drop(open);
    reports(&big_told, 3);
    assert!(engine.submit(more).is_ok());
    reports(&more_told, 1);
}

#[test]
fn dropping_an_engine_blocks_nobody_and_reports_what_it_never_began() {
    let (from, to) = pair();
    let engine = HostEngine::new("test", 1, 64);
    let open = occupy(&engine, &from, &to);
    let (job, told) = job(&from, &to, &[(0, 0), (1, 1)], Ticket::default());
    assert!(engine.submit(job).is_ok());
    drop(engine);
    let told = reports(&told, 2);
    assert_eq!(told, [const { Err(TransferError::EngineStopped) }; 2]);
    drop(open);
}

struct Panics;

impl Reports for Panics {
    fn report(&self, _: usize, _: Report) {
        panic!("a receiver of reports panics");
    }
}

#[test]
fn a_receiver_that_panics_costs_its_own_reports_only() {
    let (from, to) = pair();
    let engine = HostEngine::new("test", 1, 64);
    let (plan, ticket, _) = job(&from, &to, &[(3, 3)], Ticket::default()).0.into_parts();
    assert!(engine.submit(Job::new(plan, ticket, Arc::new(Panics))).is_ok());
    let (job, told) = job(&from, &to, &[(0, 1)], Ticket::default());
    assert!(engine.submit(job).is_ok());
    assert!(reports(&told, 1)[0].is_ok());
    assert_eq!(read(&from, 0), read(&to, 1));
}

#[test]
fn memory_that_the_cpu_cannot_reach_is_refused() {
    let (real, _) = pair();
    let null = memory_of(layout(&LayoutType::FullyContiguous, 4, [2, 2, 4, 16]), &NullAllocator);
    let engine: Arc<dyn TransferEngine> = Arc::new(HostEngine::new("test", 1, 64));
    let faulty = FaultEngine::new(engine.clone(), Faults { tears: 1.0, ..Faults::none(0) });
    for (from, to) in [(&real, &null), (&null, &real)] {
        let (job, told) = job(from, to, &[(0, 0)], Ticket::default());
        let Err((error, _)) = engine.submit(job) else { panic!("there are no bytes") };
        assert_eq!(
            std::error::Error::source(&error).unwrap().to_string(),
            StorageError::NotAccessible { storage: null.storages()[0].storage_type() }.to_string()
        );
        assert!(told.try_recv().is_err());
    }
    let (job, _told) = job(&real, &null, &[(0, 0)], Ticket::default());
    assert!(faulty.submit(job).is_err());
}

#[test]
fn plans_between_different_blocks_or_outside_their_memory_are_refused() {
    let (from, to) = pair();
    let other = memory(&LayoutType::FullyContiguous, 4, [2, 2, 4, 17]);
    let plan = |to: &Arc<BlockMemory>, pair: (u32, u32)| {
        let pairs = vec![BlockPair { from: pair.0, to: pair.1 }];
        // SAFETY: nothing is submitted.
        unsafe { TransferPlan::new(from.clone(), to.clone(), pairs) }.err().map(|e| e.to_string())
    };
    assert_eq!(plan(&to, (3, 3)), None);
    assert!(plan(&to, (4, 0)).unwrap().contains("block: 4"));
    assert!(plan(&to, (0, u32::MAX)).unwrap().contains("block: 4294967295"));
    assert!(plan(&other, (0, 0)).unwrap().contains("region bytes"));
}

#[test]
fn the_same_bytes_are_never_the_slots_of_two_memories() {
    let layout = layout(&LayoutType::FullyContiguous, 4, [2, 2, 4, 16]);
    let size = layout.storage_sizes()[0];
    let storage: Arc<dyn Storage> = Arc::new(SystemStorage::new(size).unwrap());
    let of = |storage: &Arc<dyn Storage>| BlockMemory::new(layout.clone(), vec![storage.clone()]);
    let first = of(&storage).unwrap();
    let error = of(&storage).unwrap_err().to_string();
    assert!(error.contains("storage") && error.contains("its own"), "{error}");
    let clone = first.clone();
    drop(first);
    assert!(of(&storage).is_err(), "a clone is the same blocks");
    drop(clone);
    assert!(of(&storage).is_ok());
    // What has no bytes can be anybody's.
    let null: Arc<dyn Storage> = Arc::new(NullStorage::new(size).unwrap());
    let both = (of(&null).unwrap(), of(&null).unwrap());
    drop(both);
}

#[test]
fn a_storage_that_is_too_small_is_refused_with_both_sizes() {
    let layout = layout(&LayoutType::FullyContiguous, 4, [2, 2, 4, 16]);
    let size = layout.storage_sizes()[0];
    let small: Arc<dyn Storage> = Arc::new(SystemStorage::new(size - 1).unwrap());
    let error = BlockMemory::new(layout.clone(), vec![small.clone()]).unwrap_err();
    assert_eq!(error, StorageError::OutOfBounds { offset: 0, len: size, size: size - 1 });
    assert!(BlockMemory::new(layout, vec![small.clone(), small]).is_err());
}

#[test]
fn a_stalled_engine_starts_everything_in_order_when_it_goes_on() {
    let (from, to) = pair();
    let engine = FaultEngine::new(Arc::new(HostEngine::new("test", 1, 64)), Faults::none(0));
    engine.stall();
    let waiting: Vec<_> = (0..4)
        .map(|block| {
            let (job, told) = job(&from, &to, &[(block, block)], Ticket::default());
            assert!(engine.submit(job).is_ok());
            told
        })
        .collect();
    assert!(waiting.iter().all(|told| told.try_recv().is_err()));
    engine.resume();
    for told in &waiting {
        assert!(reports(told, 1)[0].is_ok());
    }
    engine.stall();
    let (job, told) = job(&from, &to, &[(0, 0)], Ticket::default());
    assert!(engine.submit(job).is_ok());
    drop(engine);
    assert_eq!(reports(&told, 1), [Err(TransferError::EngineStopped)]);
}

#[test]
fn corruption_at_rest_keeps_the_sums_of_the_good_bytes() {
    for (corruption, honest) in [(Corruption::AtRest, true), (Corruption::InTransit, false)] {
        let (from, to) = pair();
        let faults = Faults { flips: 1.0, corruption, ..Faults::none(1) };
        let engine = FaultEngine::new(Arc::new(HostEngine::new("test", 1, 64)), faults);
        let (job, told) = job(&from, &to, &[(0, 0)], Ticket::default());
        assert!(engine.submit(job).is_ok());
        let sums = reports(&told, 1).remove(0).unwrap();
        let (good, bad) = (read(&from, 0), read(&to, 0));
        let flipped: u32 = good.iter().zip(&bad).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!(flipped, 1);
        let of = |bytes: &[u8]| {
            let region = from.layout().region_bytes();
            bytes.chunks(region).map(Crc::of).collect::<Vec<_>>()
        };
        assert_eq!(&*sums, if honest { of(&good) } else { of(&bad) });
    }
}
