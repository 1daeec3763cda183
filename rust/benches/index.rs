//! Lookups in the block index beside a bare hash table of the same keys.
//!
//! Both sides start from 128-bit keys and end with the slot. Ours works in batches of 512 (a
//! request of usual length) or one by one, keys kept in a slot array as a pool keeps them; the bare
//! table has keys inside and a fixed hasher, cheaper than our keyed mixer. Keys are looked up in
//! random order and all are there. Bytes a block count the table alone: of ours without the keys,
//! which lie in slots that exist anyway; of the bare one with them.

#![allow(missing_docs, clippy::print_stderr)]

mod figure;

use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput};
use dynamo_llm::block_manager::index::{BlockIndex, Mixer, prefetch};
use hashbrown::HashMap;

const BATCH: usize = 512;
const SIZES: [(u32, &str); 3] = [(10_000, "10k"), (1_000_000, "1M"), (10_000_000, "10M")];

/// One folded multiplication with fixed constants.
#[derive(Default)]
struct FixedHasher(u64);

impl Hasher for FixedHasher {
    fn write(&mut self, _bytes: &[u8]) {}

    fn write_u128(&mut self, key: u128) {
        let product = u128::from(key as u64 ^ 0x9e37_79b9_7f4a_7c15)
            * u128::from((key >> 64) as u64 ^ 0xd1b5_4a32_d192_ed03);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type Bare = HashMap<u128, u32, BuildHasherDefault<FixedHasher>>;

/// Numbers that look random and are the same in every run.
fn key(n: u64) -> u128 {
    let half = |n: u64| {
        let n = (n ^ n >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
        (n ^ n >> 27).wrapping_mul(0x81da_def4_bc2d_d44d)
    };
    u128::from(half(n)) << 64 | u128::from(half(!n))
}

struct Bench {
    keys: Vec<u128>,
    index: BlockIndex,
    mixer: Mixer,
    bare: Bare,
    /// Far more than fit in any cache, and not in the order of the slots.
    wanted: Vec<u128>,
    next: usize,
}

impl Bench {
    fn new(size: u32) -> Self {
        let keys: Vec<u128> = (0..u64::from(size)).map(key).collect();
        let mixer = Mixer::new();
        let mut index = BlockIndex::new(size);
        let mut bare = Bare::with_capacity_and_hasher(keys.len(), BuildHasherDefault::default());
        for (slot, &key) in (0..).zip(&keys) {
            assert!(index.insert(mixer.mix(key, 0), slot));
            bare.insert(key, slot);
        }
        let wanted =
            (0..1u64 << 20).map(|n| keys[(key(n | 1 << 63) % u128::from(size)) as usize]).collect();
        Self { keys, index, mixer, bare, wanted, next: 0 }
    }

    /// Where the next batch of keys begins.
    fn turn(&mut self) -> usize {
        let start = self.next;
        self.next = (start + BATCH) % self.wanted.len();
        start
    }

    fn batch(&mut self) -> u32 {
        let start = self.turn();
        let batch = &self.wanted[start..start + BATCH];
        self.index
            .find_all(
                batch.iter().map(|&key| self.mixer.mix(key, 0)),
                |slot| prefetch(&self.keys, slot as usize),
                |i, slot| self.keys[slot as usize] == batch[i],
            )
            .map_while(|slot| slot)
            .fold(0, u32::wrapping_add)
    }

    fn single(&mut self) -> u32 {
        let start = self.turn();
        let find = |&key: &u128| {
            self.index.find(self.mixer.mix(key, 0), |slot| self.keys[slot as usize] == key)
        };
        self.wanted[start..start + BATCH].iter().map_while(find).fold(0, u32::wrapping_add)
    }

    fn bare(&mut self) -> u32 {
        let start = self.turn();
        let batch = &self.wanted[start..start + BATCH];
        batch.iter().map_while(|key| self.bare.get(key).copied()).fold(0, u32::wrapping_add)
    }
}

fn figures(bench: Bench, label: &str) {
    let blocks = bench.keys.len() as f64;
    eprintln!(
        "index/{label}: {:.1} bytes a block, bare table {:.1}",
        bench.index.memory_bytes() as f64 / blocks,
        bench.bare.allocation_size() as f64 / blocks,
    );
    let bench = std::cell::RefCell::new(bench);
    let reference = "hashbrown::HashMap<u128, u32>::get";
    for (kind, ours) in
        [("batched", Bench::batch as fn(&mut Bench) -> u32), ("single", Bench::single)]
    {
        figure::compare(
            &format!("index/{kind}/{label}"),
            "lookups/s",
            BATCH as f64,
            || _ = black_box(ours(&mut bench.borrow_mut())),
            reference,
            || _ = black_box(bench.borrow_mut().bare()),
        );
    }
}

fn detailed(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("index");
    group.throughput(Throughput::Elements(BATCH as u64)).sample_size(20);
    let mut bench = Bench::new(SIZES[0].0);
    group.bench_function(BenchmarkId::new("find_all", SIZES[0].1), |b| b.iter(|| bench.batch()));
    group.bench_function(BenchmarkId::new("find", SIZES[0].1), |b| b.iter(|| bench.single()));
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    detailed(&mut criterion);
    criterion.final_summary();
    if figure::wanted() {
        for (size, label) in SIZES {
            figures(Bench::new(size), label);
        }
    }
}
