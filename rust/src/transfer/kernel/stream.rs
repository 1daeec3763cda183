//! Non-temporal stores on x86-64: full lines go to memory past the cache.

use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_stream_si256};
use std::ptr;

use super::{LINE, to_line};

/// Shorter pieces go through the cache: too much of them is the ragged edge of a line, for which a
/// non-temporal store costs a memory access of its own.
pub(super) const FROM: usize = 1024;

/// Bytes of one store.
const WIDTH: usize = size_of::<__m256i>();

/// Bytes of one turn of the loop: two lines.
const TURN: usize = 4 * WIDTH;
const _: () = assert!(TURN.is_multiple_of(LINE));

/// Whether this CPU has the instructions. Looked up once by the standard library.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx")
}

/// # Safety
///
/// As for [`super::copy`], and [`available`] said yes.
#[target_feature(enable = "avx")]
#[allow(clippy::cast_ptr_alignment, reason = "the loads take any, the stores start at a line")]
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    let head = to_line(dst).min(len);
    let body = (len - head) / TURN * TURN;
    let tail = len - head - body;
    // SAFETY: head, body and tail follow one another and end at `len`, so every address below is
    // inside the pieces that the caller vouches for. The body starts at a line of the destination,
    // as the aligned stores ask; the loads ask for no alignment.
    unsafe {
        ptr::copy_nonoverlapping(src, dst, head);
        let (from, to) = (src.add(head), dst.add(head));
        let mut at = 0;
        while at < body {
            let (from, to) = (from.add(at).cast::<__m256i>(), to.add(at).cast::<__m256i>());
            // All loads before the stores: a turn of two whole lines leaves at once.
            let a = _mm256_loadu_si256(from);
            let b = _mm256_loadu_si256(from.add(1));
            let c = _mm256_loadu_si256(from.add(2));
            let d = _mm256_loadu_si256(from.add(3));
            _mm256_stream_si256(to, a);
            _mm256_stream_si256(to.add(1), b);
            _mm256_stream_si256(to.add(2), c);
            _mm256_stream_si256(to.add(3), d);
            at += TURN;
        }
        ptr::copy_nonoverlapping(from.add(body), to.add(body), tail);
    }
}
