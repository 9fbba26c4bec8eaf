//! The values that host and sandboxed code write for each other.
//!
//! Guarantees: any bytes are a value of such a type, and a value has no bytes without content.
#![allow(unsafe_code)]

/// An address in a module's memory.
pub(super) type GuestAddress = u32;

/// Where the parts of an invocation lie in its memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GuestAddresses {
    /// The memory's base, an address of the process, and the module's first stack pointer.
    pub(super) base: usize,
    pub(super) stack: GuestAddress,
    /// The header that the module is given as its invocation, the arguments, and the future.
    pub(super) header: GuestAddress,
    pub(super) args: GuestAddress,
    pub(super) slot: GuestAddress,
    /// The arena: its first free byte at the beginning, its end, and how far it may grow. All 0 in modules that were
    /// made elsewhere, which have allocators of their own.
    pub(super) first_free: GuestAddress,
    pub(super) end: GuestAddress,
    pub(super) limit: GuestAddress,
    /// The near records: see `set_near_records()` of a memory.
    pub(super) near_records: (GuestAddress, GuestAddress),
    /// Bytes of memory of such a module, and how many it may have.
    pub(super) module_bytes: u32,
    pub(super) module_limit: u32,
}

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
