//! Sealed scattered copies beside a parallel memcpy of the same bytes.
//!
//! Blocks of 1 and 2 MiB (64 regions each, as 32 layers of K and V) are moved between two regions
//! far larger than the cache, in random order on both sides, by two threads. Ours copies, sums
//! every tile and seals every block; the reference only copies.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use std::ops::ControlFlow;
use std::thread;

use dynamo_llm::block_manager::seal::{Crc, Fingerprint, Seal, SealTiling};
use dynamo_llm::block_manager::storage::{Storage, StorageAccess, StorageMemset, SystemStorage};
use dynamo_llm::block_manager::transfer::kernel;

const MIB: usize = 1 << 20;
const REGIONS: usize = 64;
const THREADS: usize = 2;

mod figure {
    use std::time::Instant;

    const ROUNDS: usize = 7;

    /// Times both sides alternately and prints one line of JSON with the medians, in `unit` (work
    /// per second); a ratio above 1 means ours is faster.
    pub(super) fn compare(
        name: &str,
        unit: &str,
        work_per_round: f64,
        mut ours: impl FnMut(),
        reference_name: &str,
        mut reference: impl FnMut(),
    ) {
        let mut rates = [const { Vec::new() }; 2];
        let time = |side: &mut dyn FnMut(), rates: &mut Vec<f64>| {
            let start = Instant::now();
            side();
            rates.push(work_per_round / start.elapsed().as_secs_f64());
        };
        ours();
        reference();
        for _ in 0..ROUNDS {
            time(&mut ours, &mut rates[0]);
            time(&mut reference, &mut rates[1]);
        }
        let [ours, reference] = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        });
        let ratio = ours / reference;
        println!(
            "{{\"bench\":\"{name}\",\"ours\":{ours:.3},\"reference\":{reference:.3},\
             \"reference_name\":\"{reference_name}\",\"unit\":\"{unit}\",\"ratio\":{ratio:.3}}}"
        );
    }
}

/// Two regions and an order in which their blocks are paired.
struct Scene {
    source: SystemStorage,
    target: SystemStorage,
    order: Vec<(usize, usize)>,
    block_bytes: usize,
}

impl Scene {
    fn new(total: usize, block_bytes: usize) -> Self {
        let mut source = SystemStorage::new(total).unwrap();
        let target = SystemStorage::new(total).unwrap();
        target.prefault(THREADS, |_| ControlFlow::Continue(())).unwrap();
        let blocks = total / block_bytes;
        for block in 0..blocks {
            source.memset(block as u8, block * block_bytes, block_bytes).unwrap();
        }
        let order = shuffled(blocks, 1).into_iter().zip(shuffled(blocks, 2)).collect();
        Self { source, target, order, block_bytes }
    }

    /// Runs `copy(dst, src)` for each block, shared out over the threads.
    fn each(&self, copy: impl Fn(*mut u8, *const u8) + Sync) {
        thread::scope(|scope| {
            for part in self.order.chunks(self.order.len().div_ceil(THREADS)) {
                let copy = &copy;
                scope.spawn(move || {
                    for &(from, to) in part {
                        let at = |storage: &SystemStorage, block: usize| {
                            storage.ptr_at(block * self.block_bytes, self.block_bytes).unwrap()
                        };
                        copy(at(&self.target, to).as_ptr(), at(&self.source, from).as_ptr());
                    }
                    kernel::fence();
                });
            }
        });
    }
}

/// The numbers below `n` in an order that depends on `seed` alone.
fn shuffled(n: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for last in (1..n).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(last, (state % (last as u64 + 1)) as usize);
    }
    order
}

fn main() {
    // Without cargo's flag for benches this is a test run: the same code over little.
    let total = if std::env::args().any(|arg| arg == "--bench") { 512 * MIB } else { 8 * MIB };
    for block_mib in [1, 2] {
        let scene = Scene::new(total, block_mib * MIB);
        let tiling = SealTiling::new(REGIONS, scene.block_bytes / REGIONS).unwrap();
        let fingerprint = Fingerprint::from_bytes([1; 32]);
        let sealed = |dst: *mut u8, src: *const u8| {
            let mut crc = Crc::new();
            let mut sums = Vec::with_capacity(tiling.tiles());
            for tile in tiling.iter() {
                let at = tile.region * tiling.region_bytes() + tile.offset;
                // SAFETY: the tile lies inside the block, blocks of source and target are apart,
                // and each target block is written by one thread.
                unsafe { kernel::copy_sealed(dst.add(at), src.add(at), tile.len, &mut crc) };
                sums.push(crc.take());
            }
            std::hint::black_box(Seal::new(&[0; 20], &fingerprint, sums));
        };
        let bare = |dst: *mut u8, src: *const u8| {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(src, dst, tiling.block_bytes()) };
        };
        figure::compare(
            &format!("sealed_copy_{block_mib}mib"),
            "GB/s",
            scene.source.size() as f64 / 1e9,
            || scene.each(sealed),
            "parallel memcpy",
            || scene.each(bare),
        );
    }
}
