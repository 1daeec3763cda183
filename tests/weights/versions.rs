//! Blocks whose bytes follow from their hashes and from the weights that computed them.

use std::time::{Duration, Instant};

use dynamo_llm::block_manager::{
    BlockResult, ImmutableBlock, OnboardOptions, Registration, SequenceHash, Tier,
};

use crate::rig::{LONG, Rig, Setup};

/// What the weights are called.
pub(crate) fn name(version: u32) -> String {
    format!("step-{version}")
}

/// The same, in force from the start.
pub(crate) fn under(setup: &Setup, version: u32) -> Setup {
    setup.clone().with(|config| config.model.revision = Some(name(version)))
}

fn byte(hash: SequenceHash, version: u32, region: usize, at: usize) -> u8 {
    let seed = hash.as_u128() as u64 ^ u64::from(version) << 40 ^ (region as u64) << 56;
    (seed.wrapping_mul(2 * at as u64 + 0x9e37_79b9_7f4a_7c15) >> 40) as u8
}

/// Computes a chain on the device with the weights of `version`.
pub(crate) fn compute(rig: &Rig, version: u32, hashes: &[SequenceHash]) -> Vec<ImmutableBlock> {
    let device = rig.manager.device().unwrap();
    let mut blocks = device.allocate_blocks_blocking(hashes.len()).unwrap();
    for (block, &hash) in blocks.iter_mut().zip(hashes) {
        for layer in 0..block.num_layers() {
            for outer in 0..block.num_outer_dims() {
                let view = block.layer_view_mut(layer, outer).unwrap();
                let bytes = view.iter_mut().enumerate();
                bytes.for_each(|(at, b)| *b = byte(hash, version, 2 * layer + outer, at));
            }
        }
    }
    device.register_blocks_as(blocks, &Registration::chain(hashes, 0, None)).unwrap()
}

fn is_of(block: &ImmutableBlock, version: u32) -> bool {
    let hash = block.sequence_hash();
    let regions = (0..block.num_layers())
        .flat_map(|layer| (0..block.num_outer_dims()).map(move |outer| (layer, outer)));
    regions.into_iter().all(|(layer, outer)| {
        let view = block.layer_view(layer, outer).unwrap();
        let region = 2 * layer + outer;
        view.iter().enumerate().all(|(at, &b)| b == byte(hash, version, region, at))
    })
}

/// Computes a chain and stores it on disk; the results.
pub(crate) fn store(rig: &Rig, version: u32, hashes: &[SequenceHash]) -> Vec<BlockResult> {
    let blocks = compute(rig, version, hashes);
    let stored = rig.manager.offload_to(&blocks, Tier::Disk).unwrap();
    stored.wait(Some(LONG)).unwrap()
}

/// Computes a chain and has it on disk alone.
pub(crate) fn put(rig: &Rig, version: u32, hashes: &[SequenceHash]) {
    let results = store(rig, version, hashes);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    rig.clear_memory();
}

/// Brings up what there is; how much, and every byte of it is of `version`.
pub(crate) fn get(rig: &Rig, version: u32, hashes: &[SequenceHash]) -> usize {
    let found = rig.manager.lookup(hashes).unwrap();
    let options =
        OnboardOptions { deadline: Instant::now().checked_add(LONG), ..Default::default() };
    let arrived = rig.manager.onboard_blocking(found, options).unwrap();
    for block in &arrived.blocks {
        assert!(is_of(block, version), "{block:?} is not of version {version}");
    }
    arrived.blocks.len()
}

/// The same, with nothing left above the disk.
pub(crate) fn get_from_disk(rig: &Rig, version: u32, hashes: &[SequenceHash]) -> usize {
    rig.clear_memory();
    let found = get(rig, version, hashes);
    rig.clear_memory();
    found
}

/// Switches; blocks that were found.
pub(crate) fn switch(rig: &Rig, version: u32) -> usize {
    rig.manager.set_weights_version_blocking(&name(version)).unwrap().found
}

pub(crate) fn quarantined(rig: &Rig) -> u64 {
    rig.manager.disk().unwrap().status().quarantined
}

/// Waits for another thread to get there.
pub(crate) fn eventually(what: &str, mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < LONG, "waited in vain until {what}");
        std::thread::yield_now();
    }
}

/// Short beside a drive that never answers.
pub(crate) const SHORT: Duration = Duration::from_secs(1);
