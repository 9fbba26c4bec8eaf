//! Lists that a module names: looked at once, and read and written after that.

use std::ptr::NonNull;

use sandstorm_api::abi;

use super::GuestMemory;
use crate::guest_value::{GuestAddress, GuestValue};

/// A list of values in a module's memory, all of which was granted when the list was made.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct GuestList<T> {
    first: NonNull<T>,
    len: usize,
}

impl GuestMemory {
    /// The list of `len` values at an address, if all of it is granted.
    #[inline]
    pub(in super::super) fn list<T: GuestValue>(&self, first: GuestAddress, len: usize) -> Result<GuestList<T>, u32> {
        let bytes = len.checked_mul(size_of::<T>()).and_then(|bytes| u32::try_from(bytes).ok());
        let first = self.granted(first, bytes.ok_or(abi::STATUS_INVALID)? as usize)?.cast();
        Ok(GuestList { first, len })
    }
}

impl<T: GuestValue> GuestList<T> {
    /// Reads a value.
    ///
    /// # Safety
    /// The list has so many values. The memory is there, and nothing of it was taken back since the list was made.
    #[inline]
    pub(in super::super) unsafe fn get(&self, index: usize) -> T {
        debug_assert!(index < self.len);
        // SAFETY: this function's contract; any bytes are a value.
        unsafe { self.first.add(index).read_unaligned() }
    }

    /// Writes a value.
    ///
    /// # Safety
    /// As for [`GuestList::get`]; no slice of these bytes is used any more.
    #[inline]
    pub(in super::super) unsafe fn set(&self, index: usize, value: T) {
        debug_assert!(index < self.len);
        // SAFETY: this function's contract.
        unsafe { self.first.add(index).write_unaligned(value) };
    }
}
