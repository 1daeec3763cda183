//! The verbs of a pool beside the same bare work on a hash map and a queue.
//!
//! A pool of 65,536 slots and sequences of 512 blocks, taken in turn so that nothing stays in the
//! first cache. The bare side looks up, counts readers and queues slot numbers, with no lock, no
//! policy, no chains, no events and no handles. Verbs that undo each other are compared as cycles;
//! each alone is then timed against its budget. Last the memory of a pool of 10 million blocks, as
//! the system counts it.

#![allow(missing_docs, clippy::print_stderr, clippy::unwrap_used)]

mod figure;

use std::{
    cell::RefCell,
    collections::VecDeque,
    hint::black_box,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, Throughput};
use dynamo_llm::block_manager::{
    Key, SequenceHash, SlotId, Tier,
    config::EvictionKind,
    pool::{ImmutableSlots, MutableSlots, Registration, SlotPool, SlotPoolOptions},
};
use hashbrown::HashMap;

const CAPACITY: usize = 1 << 16;
const BATCH: usize = 512;
/// Rounds of a timed verb; medians want an odd number.
const ROUNDS: usize = 301;

/// Numbers that look random and are the same in every run.
fn hash(n: u64) -> SequenceHash {
    let half = |n: u64| {
        let n = (n ^ n >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
        (n ^ n >> 27).wrapping_mul(0x81da_def4_bc2d_d44d)
    };
    SequenceHash::from_u128(u128::from(half(n)) << 64 | u128::from(half(!n)))
}

struct Sequence {
    names: Vec<Registration>,
    keys: Vec<Key>,
}

/// More sequences than the pool has room for, so that taking them in turn evicts.
fn sequences(capacity: usize) -> Vec<Sequence> {
    (0..(capacity / BATCH * 5 / 4) as u64)
        .map(|sequence| {
            let hashes: Vec<_> = (0..BATCH as u64).map(|n| hash(sequence << 20 | n)).collect();
            let names = Registration::chain(&hashes, 0, None);
            Sequence { keys: names.iter().map(|name| name.key).collect(), names }
        })
        .collect()
}

fn pool(capacity: usize, policy: EvictionKind) -> SlotPool {
    let policy = policy.build(capacity as u32);
    SlotPool::new(SlotPoolOptions::new(Tier::Device, capacity, policy)).unwrap()
}

/// A pool in which the first sequences are, idle; `part` of its slots are taken by them.
struct Ours {
    pool: SlotPool,
    sequences: Vec<Sequence>,
    turn: usize,
    resident: usize,
}

impl Ours {
    fn new(policy: EvictionKind, part: f64) -> Self {
        let (pool, sequences) = (pool(CAPACITY, policy), sequences(CAPACITY));
        let resident = (CAPACITY as f64 * part) as usize / BATCH;
        for sequence in &sequences[..resident] {
            drop(pool.register(pool.allocate(BATCH).unwrap(), &sequence.names).unwrap());
        }
        Self { pool, sequences, turn: 0, resident }
    }

    /// The next sequence among the first `of`.
    fn next(&mut self, of: usize) -> usize {
        self.turn = (self.turn + 1) % of;
        self.turn
    }

    fn find(&mut self, count: usize) -> ImmutableSlots {
        let turn = self.next(self.resident);
        self.pool.match_prefix(&self.sequences[turn].keys[..count])
    }

    fn allocate(&self, count: usize) -> MutableSlots {
        self.pool.allocate(count).unwrap()
    }

    fn register(&self, slots: MutableSlots, turn: usize) -> ImmutableSlots {
        let names = &self.sequences[turn].names[..slots.len()];
        self.pool.register(slots, names).unwrap()
    }

    /// A sequence that is no longer there comes again.
    fn evicting(&mut self, count: usize) -> ImmutableSlots {
        let turn = self.next(self.sequences.len());
        self.register(self.allocate(count), turn)
    }
}

/// The same work with nothing around it.
struct Bare {
    index: HashMap<u128, SlotId>,
    readers: Vec<u32>,
    keys: Vec<u128>,
    free: VecDeque<SlotId>,
    idle: VecDeque<SlotId>,
    sequences: Vec<Vec<u128>>,
    turn: usize,
    resident: usize,
}

impl Bare {
    fn new(part: f64) -> Self {
        let key = |name: &Registration| name.key.hash.as_u128();
        let sequences = sequences(CAPACITY);
        let mut bare = Self {
            index: HashMap::with_capacity(CAPACITY),
            readers: vec![0; CAPACITY],
            keys: vec![0; CAPACITY],
            free: (0..CAPACITY as SlotId).collect(),
            idle: VecDeque::with_capacity(CAPACITY),
            sequences: sequences.iter().map(|s| s.names.iter().map(key).collect()).collect(),
            turn: 0,
            resident: (CAPACITY as f64 * part) as usize / BATCH,
        };
        for turn in 0..bare.resident {
            let slots = bare.allocate(BATCH);
            bare.register(&slots, turn);
            bare.idle.extend(slots.iter().rev());
        }
        bare
    }

    fn next(&mut self, of: usize) -> usize {
        self.turn = (self.turn + 1) % of;
        self.turn
    }

    fn find(&mut self, count: usize) -> Vec<SlotId> {
        let turn = self.next(self.resident);
        let keys = &self.sequences[turn][..count];
        let found: Vec<_> = keys.iter().map_while(|key| self.index.get(key).copied()).collect();
        for &id in &found {
            self.readers[id as usize] += 1;
        }
        found
    }

    fn release(&mut self, slots: &[SlotId]) {
        for &id in slots.iter().rev() {
            self.readers[id as usize] -= 1;
        }
    }

    fn allocate(&mut self, count: usize) -> Vec<SlotId> {
        let mut slots = Vec::with_capacity(count);
        for _ in 0..count {
            slots.push(self.free.pop_front().unwrap_or_else(|| {
                let id = self.idle.pop_front().unwrap();
                self.index.remove(&self.keys[id as usize]);
                id
            }));
        }
        slots
    }

    fn register(&mut self, slots: &[SlotId], turn: usize) {
        for (&id, &key) in slots.iter().zip(&self.sequences[turn]) {
            self.keys[id as usize] = key;
            self.index.insert(key, id);
        }
    }
}

fn cycles(count: usize, label: &str) {
    let reference = "hashbrown::HashMap, VecDeque, no lock, no policy";
    let (ours, bare) =
        (RefCell::new(Ours::new(EvictionKind::Lru, 0.75)), RefCell::new(Bare::new(0.75)));
    figure::compare(
        &format!("pool/match+free/{label}"),
        "blocks/s",
        count as f64,
        || drop(black_box(ours.borrow_mut().find(count))),
        reference,
        || {
            let mut bare = bare.borrow_mut();
            let slots = black_box(bare.find(count));
            bare.release(&slots);
        },
    );
    figure::compare(
        &format!("pool/allocate+free/{label}"),
        "blocks/s",
        count as f64,
        || drop(black_box(ours.borrow().allocate(count))),
        reference,
        || {
            let mut bare = bare.borrow_mut();
            let slots = black_box(bare.allocate(count));
            bare.free.extend(slots);
        },
    );
    let (ours, bare) =
        (RefCell::new(Ours::new(EvictionKind::Lru, 1.0)), RefCell::new(Bare::new(1.0)));
    figure::compare(
        &format!("pool/evict+allocate+register+free/{label}"),
        "blocks/s",
        count as f64,
        || drop(black_box(ours.borrow_mut().evicting(count))),
        reference,
        || {
            let mut bare = bare.borrow_mut();
            let slots = bare.allocate(count);
            let of = bare.sequences.len();
            let turn = bare.next(of);
            bare.register(&slots, turn);
            bare.idle.extend(slots.iter().rev());
        },
    );
}

/// The median of how long `verb` takes on what `prepare` makes; what it returns is dropped untimed.
fn median_us<A, B>(mut prepare: impl FnMut() -> A, mut verb: impl FnMut(A) -> B) -> f64 {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let prepared = prepare();
            let start = Instant::now();
            let result = black_box(verb(black_box(prepared)));
            let took = start.elapsed();
            drop(result);
            took
        })
        .collect();
    times.sort();
    times[ROUNDS / 2].as_secs_f64() * 1e6
}

/// Each verb alone. Single calls are timed in rows of [`BATCH`], one after the other.
fn verbs(policy: EvictionKind) {
    let cell = RefCell::new(Ours::new(policy, 0.75));
    let report = |verb: &str, us: f64, budget: f64| {
        let verdict = if us <= budget { "within" } else { "over" };
        eprintln!("pool/{policy}/{verb}: {us:.2} us, {verdict} the budget of {budget} us");
    };
    let ours = || cell.borrow_mut();
    report("match/512", median_us(|| (), |()| ours().find(BATCH)), 18.0);
    report("free/512 read", median_us(|| ours().find(BATCH), drop), 3.5);
    report("allocate/512", median_us(|| (), |()| ours().allocate(BATCH)), 8.0);
    report("free/512 written", median_us(|| ours().allocate(BATCH), drop), 3.5);
    // What is registered is evicted again, out of the time, so that it is new each time.
    let fresh = Ours { resident: 0, ..Ours::new(policy, 0.0) };
    let mut turn = 0;
    let mut next = || {
        turn = (turn + 1) % fresh.sequences.len();
        if turn == 0 {
            fresh.pool.reset();
        }
        (fresh.allocate(BATCH), turn)
    };
    report("register/512", median_us(&mut next, |(slots, n)| fresh.register(slots, n)), 62.0);
    let register = |(slots, n)| fresh.register(slots, n);
    report("free/512 new", median_us(|| register(next()), drop), 3.5);

    let full = Ours::new(policy, 1.0);
    let mut gone = full.resident;
    let us = median_us(
        || {
            // Fills what the round before has left, then nothing is free.
            gone = (gone + 1) % full.sequences.len();
            let free = full.pool.metrics().free as usize;
            drop(full.register(full.allocate(free.min(BATCH)), gone));
        },
        |()| full.allocate(BATCH),
    );
    eprintln!("pool/{policy}/allocate/512 evicting: {us:.2} us");

    let each = |us: f64| us / BATCH as f64;
    let row = |mut verb: Box<dyn FnMut(usize) -> ImmutableSlots + '_>| {
        median_us(|| (), |()| (0..BATCH).map(&mut verb).collect::<Vec<_>>())
    };
    let one = |n: usize| {
        let ours = cell.borrow();
        ours.pool.match_prefix(&ours.sequences[n % ours.resident].keys[n..=n])
    };
    report("match/1", each(row(Box::new(one))), 1.0);
    let held = || (0..BATCH).map(one).collect::<Vec<_>>();
    report("free/1", each(median_us(held, drop)), 1.0);
    let take = || (0..BATCH).map(|_| ours().allocate(1)).collect::<Vec<_>>();
    report("allocate/1", each(median_us(|| (), |()| take())), 1.0);
    let mut turn = 0;
    fresh.pool.reset();
    let us = median_us(
        || {
            turn = (turn + 1) % fresh.sequences.len();
            if turn == 0 {
                fresh.pool.reset();
            }
            (fresh.allocate(BATCH).into_singles().collect::<Vec<_>>(), turn)
        },
        |(slots, turn)| {
            let names = &fresh.sequences[turn].names;
            let one = |(slot, name)| fresh.pool.register(slot, std::slice::from_ref(name)).unwrap();
            slots.into_iter().zip(names).map(one).collect::<Vec<_>>()
        },
    );
    report("register/1", each(us), 1.0);
}

/// Bytes of this process that are in memory.
fn resident_bytes() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok());
    pages.unwrap_or_default() * 4096.0
}

fn memory() {
    const BLOCKS: usize = 10_000_000;
    let before = resident_bytes();
    let pool = pool(BLOCKS, EvictionKind::Lru);
    let empty = resident_bytes() - before;
    for first in (0..BLOCKS).step_by(1000) {
        let hashes: Vec<_> = (first..first + 1000).map(|n| hash(n as u64)).collect();
        let slots = pool.allocate(1000).unwrap();
        drop(pool.register(slots, &Registration::chain(&hashes, 0, None)).unwrap());
    }
    let full = resident_bytes() - before;
    pool.reset();
    let reset = resident_bytes() - before;
    let megabytes = |bytes: f64| bytes / 1e6;
    eprintln!(
        "pool/memory/10M, slots, parents, index, free list and LRU: {:.0} MB empty, {:.0} MB full, \
         {:.0} MB once all are in the free list; {:.1} bytes a block, budget 1000 MB",
        megabytes(empty),
        megabytes(full),
        megabytes(reset),
        reset / BLOCKS as f64,
    );
}

fn detailed(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pool");
    group.sample_size(20);
    for policy in EvictionKind::ALL {
        let mut ours = Ours::new(*policy, 0.75);
        group.throughput(Throughput::Elements(BATCH as u64));
        group.bench_function(BenchmarkId::new("match+free/512", policy), |bencher| {
            bencher.iter(|| ours.find(BATCH));
        });
        group.bench_function(BenchmarkId::new("allocate+free/512", policy), |bencher| {
            bencher.iter(|| ours.allocate(BATCH));
        });
        let mut ours = Ours::new(*policy, 1.0);
        group.bench_function(BenchmarkId::new("evict+register+free/512", policy), |bencher| {
            bencher.iter(|| ours.evicting(BATCH));
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    detailed(&mut criterion);
    criterion.final_summary();
    if figure::wanted() {
        for (count, label) in [(BATCH, "512"), (1, "1")] {
            cycles(count, label);
        }
        for policy in EvictionKind::ALL {
            verbs(*policy);
        }
        memory();
    }
}
