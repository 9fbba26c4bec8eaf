//! Bytes that stay as they are until the invocation ends.
//!
//! Guarantees: a copy is freed once, by the [`OwnedCopies`] that made it, when that is dropped.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use alloc::vec::Vec;

/// Bytes that stay as they are until the invocation ends: a record's, or copies that a [`OwnedCopies`] holds.
#[derive(Clone, Copy)]
pub(crate) struct InvocationBytes(pub(crate) *const [u8]);

impl InvocationBytes {
    /// A part of a record that the invocation was given.
    pub(crate) fn record(bytes: &[u8]) -> InvocationBytes {
        InvocationBytes(bytes)
    }

    /// The bytes at an address, for as long as the invocation lives.
    pub(crate) fn of_parts(first: *const u8, len: usize) -> InvocationBytes {
        InvocationBytes(core::ptr::slice_from_raw_parts(first, len))
    }

    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    /// Address and length, for the host.
    pub(crate) fn parts(self) -> (*const u8, usize) {
        (self.0.cast(), self.0.len())
    }
}

/// Holds copies until it is dropped, which is when the invocation is over, or never: the invocation's memory is freed
/// whole.
#[derive(Default)]
pub(crate) struct OwnedCopies(Vec<*mut [u8]>);

impl OwnedCopies {
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> InvocationBytes {
        let copy = Box::into_raw(Box::<[u8]>::from(bytes));
        self.0.push(copy);
        InvocationBytes(copy)
    }

    /// The bytes, while this borrow lasts.
    pub(crate) fn bytes(&self, kept: InvocationBytes) -> &[u8] {
        // SAFETY: a record's, or a copy that `self` holds: every log that names copies has its own [`OwnedCopies`].
        unsafe { &*kept.0 }
    }
}

impl Drop for OwnedCopies {
    fn drop(&mut self) {
        for copy in self.0.drain(..) {
            // SAFETY: made by `copy`; the code that was shown it is gone (`end_transaction`).
            drop(unsafe { Box::from_raw(copy) });
        }
    }
}
