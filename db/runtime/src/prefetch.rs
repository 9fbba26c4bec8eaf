//! Prefetches: asking the processor for memory that is used soon.
//!
//! Guarantees: none of them faults or changes anything, whatever the address.
#![allow(unsafe_code)]

/// Bytes of a line of the processor's cache.
pub(super) const LINE_BYTES: usize = 64;

/// Asks the processor for the line of an address. Never faults, whatever the address.
#[inline]
pub(super) fn prefetch(at: *const u8) {
    // SAFETY: SSE is part of x86-64; a prefetch reads nothing as far as the language goes and cannot fault.
    unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast()) }
}
