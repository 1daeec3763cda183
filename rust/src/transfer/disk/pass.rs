//! One block between its slot in memory and a run of bytes, summed on the way.
#![allow(unsafe_code)]

use crate::{
    eviction::SlotId,
    io::IO_ALIGNMENT,
    layout::LayoutError,
    transfer::{BlockMemory, kernel, tiles::TileSums},
};

/// Which way a block goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Out,
    In,
}

/// Copies a block out of its slot to the start of `run`; gives its tile sums.
///
/// # Safety
/// Nobody writes the slot during the call; the memory is accessible.
pub(super) unsafe fn gather(
    memory: &BlockMemory,
    slot: SlotId,
    run: &mut [u8],
) -> Result<Box<[u64]>, LayoutError> {
    // SAFETY: as here.
    unsafe { pass(memory, slot, run.as_mut_ptr(), run.len(), Way::Out) }
}

/// Copies a block from the start of `run` into its slot; gives its tile sums.
///
/// # Safety
/// Nobody else touches the slot during the call; the memory is accessible.
pub(super) unsafe fn scatter(
    memory: &BlockMemory,
    slot: SlotId,
    run: &mut [u8],
) -> Result<Box<[u64]>, LayoutError> {
    // SAFETY: as here.
    unsafe { pass(memory, slot, run.as_mut_ptr(), run.len(), Way::In) }
}

unsafe fn pass(
    memory: &BlockMemory,
    slot: SlotId,
    run: *mut u8,
    len: usize,
    way: Way,
) -> Result<Box<[u64]>, LayoutError> {
    let layout = memory.layout();
    let mut sums = TileSums::new(memory.tiling());
    let mut at = 0;
    for span in layout.spans(slot as usize, 0..layout.num_layers())? {
        let in_slot = memory.address(span);
        // A run is never shorter than a block; if it were, the sums would not verify.
        if at + span.len > len {
            break;
        }
        let in_run = run.wrapping_add(at);
        let (from, to) = match way {
            Way::Out => (in_slot.cast_const(), in_run),
            Way::In => (in_run.cast_const(), in_slot),
        };
        sums.feed(span.len, |offset, len, crc| {
            // SAFETY: the span lies within the memory and, as checked, its counterpart within the
            // run; the caller vouches for the slot, and the run is borrowed exclusively.
            unsafe { kernel::copy_sealed(to.add(offset), from.add(offset), len, crc) };
        });
        at += span.len;
    }
    // Non-temporal stores become visible before anybody is told.
    kernel::fence();
    Ok(sums.finish())
}

/// Address of a block that a drive can read and write where it lies: one run, aligned, and of whole
/// pages.
pub(super) fn in_place(memory: &BlockMemory, slot: SlotId) -> Option<*mut u8> {
    let layout = memory.layout();
    let mut spans = layout.spans(slot as usize, 0..layout.num_layers()).ok()?;
    let (first, second) = (spans.next()?, spans.next());
    let start = memory.address(first);
    let whole = second.is_none() && first.len == layout.block_bytes();
    let aligned = |number: usize| number.is_multiple_of(IO_ALIGNMENT);
    (whole && aligned(first.len) && aligned(start.addr())).then_some(start)
}
