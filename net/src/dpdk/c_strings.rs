//! DPDK's strings, copied.
//!
//! Guarantees: a string of DPDK's is copied before anything else is called.
#![allow(unsafe_code)]

use sandstorm_dpdk_sys as sys;
use std::ffi::{CStr, c_char};

/// Returns DPDK's text for an error number.
pub(super) fn error_text(code: i32) -> String {
    // SAFETY: the function takes any number and returns a string that lives until the thread's next call; it is copied
    // at once.
    unsafe { copy_c_string(sys::rte_strerror(code)) }
}

/// Returns the version of DPDK that this runs with, such as "DPDK 22.11.11".
pub fn version() -> String {
    // SAFETY: the function returns a string that lives as long as the process.
    unsafe { copy_c_string(sys::rte_version()) }
}

/// Copies a string.
///
/// # Safety
/// `from` is null or points to a string that ends with a zero.
unsafe fn copy_c_string(from: *const c_char) -> String {
    if from.is_null() {
        return String::new();
    }
    // SAFETY: as promised by the caller.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

/// Returns the text in an array that ends with a zero, or with the array.
pub(super) fn c_chars_to_string(from: &[c_char]) -> String {
    let bytes: Vec<u8> = from.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
