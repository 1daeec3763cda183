//! The engine: one answer each, lanes apart, deadlines, drives that are sick.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use dynamo_llm::block_manager::io::fault::Faults;
use dynamo_llm::block_manager::io::{
    Clock, FileOp, Health, HealthOptions, IO_ALIGNMENT, IoBuffer, IoEngine, IoError, IoRequest,
    IoWork, Lane, PsyncEngine, PsyncOptions, Staging, StagingBuffer,
};

use crate::rig::*;

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

#[test]
fn a_lane_whose_threads_all_hang_is_sick_whatever_succeeded_in_between() {
    // More failures than there are threads, so that a run of them never comes about.
    let bench = Bench::new(|options| options.health.failures = 9);
    let health = HealthOptions::default();
    let hang = || {
        bench.volume.set_faults(Faults { hangs: 1.0, ..Faults::none(1) });
        let (request, answer) = read(&bench.file, 0, 4096);
        let before = bench.volume.hanging();
        bench.engine.submit(request).unwrap();
        let start = Instant::now();
        while bench.volume.hanging() == before {
            assert!(start.elapsed() < AT_MOST);
            std::thread::yield_now();
        }
        bench.volume.set_faults(Faults::none(1));
        answer
    };
    let first = hang();
    bench.pass(health.stuck_after);
    run(&bench.engine, read(&bench.file, 0, 4096)).result.unwrap();
    assert_eq!(bench.engine.health(Lane::Load), Health::Good);
    let second = hang();
    bench.pass(health.stuck_after);
    let (request, queued) = read(&bench.file, 0, 4096);
    // Refused now or soon, as the time is looked at.
    let refused = match bench.engine.submit(request) {
        Ok(_) => queued.recv_timeout(AT_MOST).unwrap().result.unwrap_err(),
        Err((error, _)) => error,
    };
    assert!(matches!(refused, IoError::Sick { lane: Lane::Load, .. }), "{refused}");
    bench.volume.resume();
    for answer in [first, second] {
        answer.recv_timeout(AT_MOST).unwrap().result.unwrap();
    }
    bench.clock.advance(health.probe_after);
    run(&bench.engine, read(&bench.file, 0, 4096)).result.unwrap();
    assert_eq!(bench.engine.health(Lane::Load), Health::Good);
}
