//! One block from memory to memory, summed tile by tile on the way.
#![allow(unsafe_code)]

use std::ops::Range;

use crate::{
    layout::pair_runs,
    transfer::{BlockMemory, BlockPair, Job, TransferError, kernel, tiles::TileSums},
};

/// Copies and reports some pairs of a job.
pub(super) fn execute(job: &Job, pairs: Range<usize>) {
    let plan = job.plan();
    for index in pairs {
        let result = match job.ticket().stopped() {
            Some(reason) => Err(reason),
            None => plan
                .memories("host")
                .and_then(|(from, to)| copy_block(from, to, plan.pairs()[index])),
        };
        job.report(index, result);
    }
}

fn copy_block(
    from: &BlockMemory,
    to: &BlockMemory,
    pair: BlockPair,
) -> Result<Box<[u64]>, TransferError> {
    let layout = from.layout();
    let mut sums = TileSums::new(from.tiling());
    pair_runs(
        layout,
        pair.from as usize,
        to.layout(),
        pair.to as usize,
        0..layout.num_layers(),
        |source, target| {
            let (source_at, target_at) = (from.address(source), to.address(target));
            sums.feed(source.len, |offset, len, crc| {
                // SAFETY: both spans come from layouts that their memories cover, and the plan
                // keeps those alive. The source slot is held by readers only and the target slot
                // by this job alone until it reports, so nobody writes the one or touches the
                // other, and the two cannot overlap.
                unsafe {
                    kernel::copy_sealed(target_at.add(offset), source_at.add(offset), len, crc);
                }
            });
        },
    )?;
    // Non-temporal stores become visible before the report does.
    kernel::fence();
    Ok(sums.finish())
}
