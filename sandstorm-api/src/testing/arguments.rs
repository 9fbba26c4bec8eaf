//! The arguments of a host call, and the invocation behind it.
//!
//! Guarantees: nothing of its own; the caller promises that the pointers are as stated.
#![allow(unsafe_code)]

use super::TestInvocation;
use crate::abi::InvocationHeader;

/// Returns the state behind an invocation, for the length of one host call.
///
/// # Safety
/// `invocation` is the first field of a live [`TestInvocation`] that nothing else refers to during the call.
pub(super) unsafe fn test_invocation<'a>(invocation: *mut InvocationHeader) -> &'a mut TestInvocation {
    // SAFETY: the caller's promise; `TestInvocation` is `repr(C)` and starts with its invocation.
    unsafe { &mut *invocation.cast::<TestInvocation>() }
}

/// The bytes of a host call's argument.
///
/// # Safety
/// `at` points to `len` bytes that stay as they are during the call.
pub(super) unsafe fn slice_argument<'a>(at: *const u8, len: usize) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(at, len) }
}
