//! The event stream: in order, never blocking, never broken by its sink.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    panic::panic_any,
    sync::{
        Arc, Barrier, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use dynamo_llm::block_manager::{
    EventManager, Key, NullEventManager, SequenceHash, Tier,
    events::{BlockEvent, EventBlock, EventKind, EventStream, TierCleared},
};

/// Keeps what it was told: kind, sequence number, slot.
#[derive(Default)]
struct Log {
    told: Mutex<Vec<(&'static str, u64, u32)>>,
    inside: AtomicBool,
}

impl Log {
    fn keep(&self, kind: &'static str, sequence: u64, block_id: u32) {
        assert!(!self.inside.swap(true, SeqCst), "two threads in the sink");
        self.told.lock().unwrap().push((kind, sequence, block_id));
        self.inside.store(false, SeqCst);
    }

    fn told(&self) -> Vec<(&'static str, u64, u32)> {
        self.told.lock().unwrap().clone()
    }
}

impl EventManager for Log {
    fn block_allocated(&self, event: &BlockEvent) {
        self.keep("allocated", event.sequence, event.block_id);
    }
    fn block_registered(&self, event: &BlockEvent) {
        self.keep("registered", event.sequence, event.block_id);
    }
    fn block_matched(&self, event: &BlockEvent) {
        self.keep("matched", event.sequence, event.block_id);
    }
    fn block_evicted(&self, event: &BlockEvent) {
        self.keep("evicted", event.sequence, event.block_id);
    }
    fn tier_cleared(&self, event: &TierCleared) {
        self.keep("cleared", event.sequence, u32::MAX);
    }
}

fn record(stream: &EventStream, block_id: u32) {
    stream.record(EventKind::Matched, Tier::Device, [EventBlock::slot(block_id)]);
}

#[test]
fn each_kind_reaches_its_method_with_what_was_recorded() {
    let log = Arc::new(Log::default());
    let stream = EventStream::new(log.clone());
    let kinds =
        [EventKind::Allocated, EventKind::Registered, EventKind::Matched, EventKind::Evicted];
    for (slot, kind) in (0..).zip(kinds) {
        stream.record(kind, Tier::Host, [EventBlock::slot(slot), EventBlock::slot(slot + 10)]);
    }
    stream.record_cleared(Tier::Host);
    assert_eq!(log.told(), [], "nothing is told before it is delivered");
    assert_eq!(stream.next_sequence(), 9);
    stream.deliver();
    let names = ["allocated", "registered", "matched", "evicted"];
    let mut expected: Vec<(&str, u64, u32)> = Vec::new();
    for (slot, name) in (0..).zip(names) {
        let first = u64::from(slot) * 2;
        expected.extend([(name, first, slot), (name, first + 1, slot + 10)]);
    }
    expected.push(("cleared", 8, u32::MAX));
    assert_eq!(log.told(), expected);
}

#[test]
fn names_arrive_as_given() {
    struct Check;
    impl EventManager for Check {
        fn block_registered(&self, event: &BlockEvent) {
            assert_eq!(event.tier, Tier::Host);
            assert_eq!(event.key, Some(Key { hash: SequenceHash::from_u128(7), group: 2 }));
            assert_eq!(event.parent, Some(SequenceHash::from_u128(6)));
            assert_eq!(event.engine_key, None);
        }
    }
    let stream = EventStream::new(Arc::new(Check));
    let key = Key { hash: SequenceHash::from_u128(7), group: 2 };
    let block =
        EventBlock { parent: Some(SequenceHash::from_u128(6)), ..EventBlock::keyed(3, key) };
    stream.record(EventKind::Registered, Tier::Host, [block]);
    stream.deliver();
    assert_eq!((stream.metrics().delivered, stream.metrics().panics), (1, 0));
}

#[test]
fn eight_threads_make_one_order() {
    const THREADS: u32 = 8;
    const EACH: u32 = 2_000;
    let log = Arc::new(Log::default());
    let stream = EventStream::new(log.clone());
    // Stands for a pool: what happens under its lock has an order, which the stream must keep.
    let pool = Mutex::new(0_u32);
    let start = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                start.wait();
                for _ in 0..EACH {
                    let mut next = pool.lock().unwrap();
                    record(&stream, *next);
                    *next += 1;
                    drop(next);
                    stream.deliver();
                }
            });
        }
    });
    // Whoever left events to another thread may rely on them being delivered.
    let expected: Vec<_> = (0..THREADS * EACH).map(|n| ("matched", u64::from(n), n)).collect();
    assert_eq!(log.told(), expected);
}

/// Says when it is entered, then waits to be let go on.
struct Stalling {
    entered: Mutex<Sender<u64>>,
    go_on: Mutex<Receiver<()>>,
}

impl EventManager for Stalling {
    fn block_matched(&self, event: &BlockEvent) {
        self.entered.lock().unwrap().send(event.sequence).unwrap();
        self.go_on.lock().unwrap().recv().unwrap();
    }
}

#[test]
fn a_stalled_consumer_holds_up_nobody_else_and_sees_the_gap() {
    let (entered_to, entered) = channel();
    let (go_on, go_on_from) = channel();
    let sink = Stalling { entered: Mutex::new(entered_to), go_on: Mutex::new(go_on_from) };
    let stream = EventStream::with_bound(Arc::new(sink), 1);
    thread::scope(|scope| {
        record(&stream, 0);
        let delivering = scope.spawn(|| stream.deliver());
        assert_eq!(entered.recv().unwrap(), 0);

        // The consumer is inside its callback; the engine goes on.
        for block in 1..=1_000 {
            record(&stream, block);
            stream.deliver();
        }
        let metrics = stream.metrics();
        assert_eq!((metrics.recorded, metrics.dropped, metrics.delivered), (1_001, 999, 0));

        go_on.send(()).unwrap();
        assert_eq!(entered.recv().unwrap(), 1, "what waited comes first");
        go_on.send(()).unwrap();
        delivering.join().unwrap();

        record(&stream, 0);
        go_on.send(()).unwrap();
        stream.deliver();
        assert_eq!(entered.recv().unwrap(), 1_001, "numbers 2..=1000 are missing");
        assert_eq!(stream.metrics().delivered, 3);
    });
}

#[test]
fn the_sink_may_use_what_it_listens_to() {
    struct Echo {
        stream: OnceLock<Weak<EventStream>>,
        told: Mutex<Vec<u64>>,
    }
    impl EventManager for Echo {
        fn block_matched(&self, event: &BlockEvent) {
            self.told.lock().unwrap().push(event.sequence);
            if event.block_id > 0 {
                let stream = self.stream.get().unwrap().upgrade().unwrap();
                record(&stream, event.block_id - 1);
                stream.deliver();
            }
        }
    }
    let sink = Arc::new(Echo { stream: OnceLock::new(), told: Mutex::default() });
    let stream = Arc::new(EventStream::new(sink.clone()));
    sink.stream.set(Arc::downgrade(&stream)).unwrap();
    record(&stream, 3);
    record(&stream, 0);
    stream.deliver();
    assert_eq!(*sink.told.lock().unwrap(), [0, 1, 2, 3, 4]);
    assert_eq!(stream.metrics().delivered, 5);
}

#[test]
fn a_panicking_sink_loses_one_event_and_the_stream_goes_on() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a payload that panics when dropped");
        }
    }
    #[derive(Default)]
    struct Odd(Mutex<BTreeSet<u32>>);
    impl EventManager for Odd {
        fn block_matched(&self, event: &BlockEvent) {
            match event.block_id {
                1 => panic!("odd"),
                3 => panic_any(Bomb),
                even => drop(self.0.lock().unwrap().insert(even)),
            }
        }
    }
    let sink = Arc::new(Odd::default());
    let stream = EventStream::new(sink.clone());
    for block in 0..6 {
        record(&stream, if block == 5 { 1 } else { block });
    }
    stream.deliver();
    record(&stream, 6);
    stream.deliver();
    assert_eq!(*sink.0.lock().unwrap(), BTreeSet::from([0, 2, 4, 6]));
    assert_eq!((stream.metrics().delivered, stream.metrics().panics), (7, 3));
}

#[test]
fn without_a_sink_nothing_is_kept() {
    let stream = EventStream::detached();
    let blocks = (0..u32::MAX).map(|_| -> EventBlock { unreachable!("nobody asked") });
    stream.record(EventKind::Allocated, Tier::Device, blocks);
    stream.record_cleared(Tier::Device);
    stream.deliver();
    assert!(!stream.is_attached());
    assert_eq!(stream.metrics().recorded, 0);

    let null = EventStream::new(Arc::new(NullEventManager));
    record(&null, 0);
    null.deliver();
    assert_eq!(null.metrics().delivered, 1);
}
