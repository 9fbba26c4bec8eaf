//! Every limit of the server: name, default, unit, reason.

// ---- extensions ----

/// CPU time of one poll of an invocation, microseconds. A worker's other tasks wait as long.
pub const SLICE_US: u64 = 1_000;
/// CPU time of a whole invocation, microseconds. Bounds how long it pins records that others have replaced.
pub const TOTAL_US: u64 = 10_000;
/// Memory of an invocation, bytes: arguments, future, allocations.
pub const ARENA_BYTES: usize = 4 << 20;
/// Largest memory quota of an invocation that can be asked for, bytes: address space is reserved for it.
pub const ARENA_MAX_BYTES: usize = 1 << 30;
/// Length of an invocation's reply, bytes: the largest value and a little.
pub const REPLY_BYTES: usize = 8 << 20;
/// Length of a library's file, bytes. Examples are 6-33 KB.
pub const LIBRARY_MAX_BYTES: usize = 16 << 20;
/// Address space that a library may take, bytes.
pub const LIBRARY_MAX_MAPPED_BYTES: u64 = 64 << 20;
/// Size of an extension's future, bytes; it lies in the invocation's memory.
pub const FUTURE_MAX_BYTES: usize = 1 << 20;
/// Alignment of an extension's future, bytes: a page.
pub const FUTURE_MAX_ALIGN_BYTES: usize = 4096;
