//! Sources of memory for records that a device may read by itself.
//!
//! What this module guarantees: nothing by itself. The implementer of [`ExtentSource`] makes the promises stated there,
//! and the store relies on them.
#![allow(unsafe_code)]

use std::ptr::NonNull;

/// Hands out extents: memory in large pieces, from which a device can send without a copy.
///
/// # Safety
/// [`ExtentSource::take`] returns [`crate::limits::DMA_EXTENT_BYTES`] of readable and writable memory, aligned to that.
/// Nothing else uses it until it is given back; a pointer to it may be used for all of it. [`ExtentSource::has`] is
/// true of its addresses, and of none that came from elsewhere.
pub unsafe trait ExtentSource: Send + Sync {
    /// An extent; none when there is no more.
    fn take(&self) -> Option<NonNull<u8>>;

    /// Returns whether an address is in this source's memory.
    fn has(&self, at: usize) -> bool;

    /// Takes an extent back.
    ///
    /// # Safety
    /// It came from [`ExtentSource::take`], is given back once, and nothing uses it any more.
    unsafe fn give(&self, at: NonNull<u8>);
}
