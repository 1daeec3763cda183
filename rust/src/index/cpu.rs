//! The two instructions that lookups need and stable Rust reaches through intrinsics alone.

#![allow(unsafe_code)]

/// Asks the CPU to fetch the cache line where `items[index]` begins. A hint and no more: an index
/// out of range, or a CPU without such a hint in stable Rust, makes it nothing.
#[inline]
pub fn prefetch<T>(items: &[T], index: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if let Some(item) = items.get(index) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing into the program and cannot fault; the address is that
        // of a live reference anyway. SSE, which it belongs to, is part of every x86_64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(item).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (items, index);
}

/// One bit for each of the `tags` that equals `tag`, without branches. What compilers make of the
/// portable form, or of a comparison within plain words, takes half as long again for a lookup.
#[inline]
pub(super) fn matching(tags: &[u32; 8], tag: u32) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{
            __m128i, _mm_cmpeq_epi32, _mm_loadu_si128, _mm_movemask_epi8, _mm_packs_epi16,
            _mm_packs_epi32, _mm_set1_epi32, _mm_setzero_si128,
        };
        #[allow(clippy::cast_ptr_alignment)] // Of no concern to an unaligned load.
        let halves = tags.as_ptr().cast::<__m128i>();
        // SAFETY: both loads lie within the 32 bytes of the array and need no alignment; the rest
        // is arithmetic. SSE2, which all of it belongs to, is part of every x86_64.
        unsafe {
            let wanted = _mm_set1_epi32(tag.cast_signed());
            let low = _mm_cmpeq_epi32(_mm_loadu_si128(halves), wanted);
            let high = _mm_cmpeq_epi32(_mm_loadu_si128(halves.add(1)), wanted);
            let words = _mm_packs_epi32(low, high);
            _mm_movemask_epi8(_mm_packs_epi16(words, _mm_setzero_si128())).cast_unsigned()
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    tags.iter().rev().fold(0, |bits, &other| bits << 1 | u32::from(other == tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matching_tells_each_place() {
        let mut tags = [7, 0, 7, u32::MAX, 1 << 31, 5, 6, 0x7fff_0007];
        assert_eq!(matching(&tags, 7), 0b101);
        assert_eq!(matching(&tags, u32::MAX), 0b1000);
        assert_eq!(matching(&tags, 9), 0);
        for place in 0..8 {
            tags[place] = 9;
            assert_eq!(matching(&tags, 9), (1 << (place + 1)) - 1);
        }
        prefetch(&tags, 3);
        prefetch(&tags, usize::MAX);
    }
}
