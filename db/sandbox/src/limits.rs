//! Limits of this crate: name, default, unit, reason.

/// Bytes of address space that an image's constants and code take at most: as a native library's.
pub const CODE_MAX_BYTES: usize = 16 << 20;
/// Bytes of data that a module's memory holds at the start. They are copied when an invocation begins in memory that
/// ran something else before, which delays the worker's other tenants: some 100 us with fresh pages.
pub const DATA_MAX_BYTES: usize = 512 << 10;
/// Data segments of a module.
pub const DATA_SEGMENTS_MAX: usize = 4_096;
/// Stack that one function may take, bytes: less than the guard below a guest stack (64 KiB), so that a call always
/// touches the guard before it passes it.
pub const FRAME_MAX_BYTES: usize = 32 << 10;
/// Instructions of an image, so that verification ends in time: 100 million a second were verified in a prototype.
pub const INSTRUCTIONS_MAX: usize = 4 << 20;
