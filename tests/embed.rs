//! Inside async programs of any kind: no runtime is needed, none is blocked, none is upset.

#![allow(clippy::unwrap_used)]

mod rig;

#[path = "../examples/embed.rs"]
#[allow(dead_code)]
mod example;

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use dynamo_llm::block_manager::{
    Arrival, KvManagerModelConfig, OnboardOptions, TransferError,
    config::{Config, OffloadPolicy},
};
use rig::{LONG, PAGE, Rig, assert_bytes, hashes, options, settled};

struct Unpark {
    thread: Thread,
    wakes: AtomicUsize,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Polls once and then only when woken: a wake-up that is lost hangs here.
fn block_on<T>(future: impl Future<Output = T>) -> (T, usize) {
    let thread = Arc::new(Unpark { thread: thread::current(), wakes: AtomicUsize::new(0) });
    let waker = Waker::from(thread.clone());
    let mut future = pin!(future);
    let mut polled_at = 0;
    let start = Instant::now();
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return (value, thread.wakes.load(Ordering::SeqCst));
        }
        while thread.wakes.load(Ordering::SeqCst) == polled_at {
            assert!(start.elapsed() < LONG, "nobody wakes the task");
            thread::park_timeout(LONG);
        }
        polled_at = thread.wakes.load(Ordering::SeqCst);
    }
}

/// Everything there is to await.
async fn everything() {
    let rig = Rig::manual(8, 16);
    let device = rig.manager.device().unwrap();
    let wanted = hashes(1, 4);
    let held = rig.fill(&wanted);
    let stored = rig.manager.offload(&held).unwrap().await;
    assert_eq!(stored, [const { Ok(Arrival::Copied) }; 4]);
    drop(held);
    rig.clear_device();
    assert_eq!(device.match_sequence_hashes(&wanted).await.unwrap().len(), 0);
    let arrived = rig.manager.onboard(rig.lookup(&wanted), options()).await.unwrap();
    assert_bytes(&arrived.blocks);
    assert_eq!(arrived.blocks.len(), 4);
    // The blocking twins work here as well.
    drop(arrived);
    rig.clear_device();
    assert_eq!(rig.get(&wanted).blocks.len(), 4);
    assert_eq!(device.touch_blocks(&wanted).await.unwrap(), 4);
    let spare = device.allocate_blocks(2).await.unwrap();
    device.add_blocks(spare).await.unwrap();
    assert_eq!(rig.manager.flush(LONG).await.unwrap(), 0);
    rig.manager.reset().await.unwrap();
    assert_eq!(rig.manager.shutdown(LONG).await.unfinished, 0);
}

#[tokio::test(flavor = "current_thread")]
async fn every_verb_works_on_one_thread() {
    everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_verb_works_on_several_threads() {
    let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(everything())).collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[test]
fn every_verb_works_on_an_executor_written_by_hand() {
    block_on(everything());
}

fn impatient() -> Rig {
    Rig::with(8, 16, OffloadPolicy::Manual, |builder| {
        let mut settings = Config::default();
        settings.offload.policy = OffloadPolicy::Manual;
        settings.transfer.deadline_ms = 25;
        let model = KvManagerModelConfig::builder().num_layers(3).page_size(PAGE).inner_dim(40);
        builder.settings(settings).model(model.build())
    })
}

#[test]
fn a_task_that_awaits_a_hung_copy_is_woken_by_the_deadline() {
    let rig = impatient();
    let held = rig.fill(&hashes(1, 2));
    rig.store.stall();
    let (results, wakes) = block_on(rig.manager.offload(&held).unwrap());
    assert_eq!(results, [const { Err(TransferError::DeadlineExceeded) }; 2]);
    assert_eq!(wakes, 1);
    // Also when nothing of the manager is left but the transfer.
    let transfer = rig.manager.offload(&held).unwrap();
    let Rig { manager, store, .. } = rig;
    drop((manager, held));
    let (results, _) = block_on(transfer);
    assert!(results.iter().all(Result::is_err));
    store.resume();
}

#[test]
fn only_the_task_that_polled_last_is_woken() {
    let rig = Rig::manual(8, 16);
    let held = rig.fill(&hashes(1, 1));
    rig.store.stall();
    let mut transfer = pin!(rig.manager.offload(&held).unwrap());
    let waker = || Arc::new(Unpark { thread: thread::current(), wakes: AtomicUsize::new(0) });
    let wakers: Vec<_> = (0..100).map(|_| waker()).collect();
    for thread in &wakers {
        let waker = Waker::from(thread.clone());
        assert!(transfer.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    // The others were let go of, not piled up.
    assert!(wakers[..99].iter().all(|waker| Arc::strong_count(waker) == 1));
    rig.store.resume();
    block_on(transfer);
    assert!(wakers[..99].iter().all(|waker| waker.wakes.load(Ordering::SeqCst) == 0));
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker panics");
    }
}

#[test]
fn a_waker_that_panics_stops_no_lane() {
    let rig = Rig::manual(8, 16);
    let held = rig.fill(&hashes(1, 1));
    rig.store.stall();
    let mut transfer = pin!(rig.manager.offload(&held).unwrap());
    let waker = Waker::from(Arc::new(Panics));
    assert!(transfer.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    rig.store.resume();
    rig.put(&hashes(2, 2));
    block_on(transfer);
}

#[tokio::test(flavor = "current_thread")]
async fn a_future_that_is_dropped_gives_up_what_it_began() {
    let rig = Rig::manual(8, 16);
    let wanted = hashes(1, 4);
    rig.put(&wanted);
    rig.clear_device();
    rig.load.stall();
    let soon = Duration::from_millis(5);
    let onboard = rig.manager.onboard(rig.lookup(&wanted), options());
    assert!(tokio::time::timeout(soon, onboard).await.is_err());
    // Never polled at all is fine too.
    drop(rig.manager.onboard(rig.lookup(&wanted), options()));
    rig.load.resume();
    rig.assert_idle();
    assert_eq!(rig.manager.device().unwrap().available_blocks(), 8);
    // A transfer that is let go goes on.
    rig.store.stall();
    let held = rig.fill(&hashes(2, 2));
    let transfer = rig.manager.offload(&held).unwrap();
    assert!(tokio::time::timeout(soon, transfer).await.is_err());
    rig.store.resume();
    rig.settle();
    assert_eq!(rig.lookup(&hashes(2, 2)).len(), 2);
}

#[tokio::test(flavor = "current_thread")]
async fn waiting_verbs_do_not_block_the_executor() {
    let rig = Rig::new(8, 16);
    rig.store.stall();
    let held = rig.fill(&hashes(1, 2));
    let deadline = Some(Instant::now() + LONG);
    let flush = rig.manager.flush(LONG);
    let store = Arc::clone(&rig.store);
    let (unfinished, ()) = tokio::join!(flush, async move { store.resume() });
    assert_eq!(unfinished.unwrap(), 0);
    drop(held);
    rig.clear_device();
    rig.load.stall();
    let onboard =
        rig.manager.onboard(rig.lookup(&hashes(1, 2)), OnboardOptions { deadline, ..options() });
    let load = Arc::clone(&rig.load);
    let (arrived, ()) = tokio::join!(onboard, async move { load.resume() });
    assert_eq!(arrived.unwrap().blocks.len(), 2);
    rig.store.stall();
    drop(rig.fill(&hashes(2, 2)));
    let shutdown = rig.manager.shutdown(LONG);
    let store = Arc::clone(&rig.store);
    let (report, ()) = tokio::join!(shutdown, async move { store.resume() });
    assert_eq!(report.unfinished, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_is_dropped_in_async_code_with_copies_under_way() {
    for _ in 0..20 {
        let rig = Rig::new(64, 128);
        let held = rig.fill(&hashes(1, 32));
        let transfer = rig.manager.offload(&held).unwrap();
        let Rig { manager, load, store } = rig;
        tokio::task::yield_now().await;
        drop((manager, load, store));
        // Each block has its result, whichever it is, and its bytes.
        assert_eq!(settled(transfer).len(), 32);
        assert_bytes(&held);
    }
}

#[test]
fn the_example_runs() {
    let none: [(std::ffi::OsString, std::ffi::OsString); 0] = [];
    block_on(example::serve(none)).0.unwrap();
    // The environment has the last word: a host of this size holds the prompt no more.
    let small = [("DYNAMO_LLM_HOST_BLOCKS".into(), "4".into())];
    block_on(example::serve(small)).0.unwrap();
}
