//! The one hint to the CPU that the lookups need.

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
