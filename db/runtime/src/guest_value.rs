//! The values that host and sandboxed code write for each other.
//!
//! Guarantees: any bytes are a value of such a type, and a value has no bytes without content.
#![allow(unsafe_code)]

/// A type whose every value is made of any bytes, and that has no padding.
///
/// # Safety
/// The implementing type is `repr(C)`, of integers alone, without padding.
pub(super) unsafe trait GuestValue: Copy {}

macro_rules! guest_values {
    ($($name:ty),* $(,)?) => {
        $(
            // SAFETY: integers alone; the structs have no padding (their sizes are asserted where they are declared).
            unsafe impl GuestValue for $name {}
        )*
    };
}

guest_values!(
    u32,
    u64,
    i64,
    sandstorm_sandbox::guest_types::GuestHeader,
    sandstorm_sandbox::guest_types::GuestRecord,
    sandstorm_sandbox::guest_types::GuestKey,
    sandstorm_sandbox::guest_types::GuestWrite,
    sandstorm_sandbox::guest_types::GuestCursor,
    sandstorm_sandbox::guest_types::GuestRange,
    sandstorm_sandbox::guest_types::GuestKeys,
    sandstorm_sandbox::guest_types::GuestRow,
    sandstorm_sandbox::guest_types::GuestRangeRead,
    sandstorm_sandbox::guest_types::GuestRead,
    sandstorm_sandbox::guest_types::GuestChange,
);
