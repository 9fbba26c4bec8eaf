//! Where memory for records comes from that a device may read by itself.
//!
//! What this module guarantees: nothing by itself; whoever implements [`ExtentSource`] promises what stands there,
//! which the store relies on.
#![allow(unsafe_code)]

use std::ptr::NonNull;

/// Hands out extents: memory in large pieces, from which a device can send without a copy.
///
/// # Safety
/// What [`ExtentSource::take`] answers is [`crate::limits::DMA_EXTENT_BYTES`] of readable and writable memory, aligned
/// to that, which nobody else has until it is given back; a pointer to it may be used for all of it.
/// [`ExtentSource::has`] is true of its addresses, and of none that came from elsewhere.
pub unsafe trait ExtentSource: Send + Sync {
    /// An extent; none when there is no more.
    fn take(&self) -> Option<NonNull<u8>>;

    /// Whether an address is of this source.
    fn has(&self, at: usize) -> bool;

    /// Takes an extent back.
    ///
    /// # Safety
    /// It came from [`ExtentSource::take`], is given back once, and nobody uses it any more.
    unsafe fn give(&self, at: NonNull<u8>);
}
