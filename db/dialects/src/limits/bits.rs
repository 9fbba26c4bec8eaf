//! Bounds of Redis' commands whose work is not cut into pieces: on bits of several values, and on parts of two.

/// Bytes of the values that BITOP combines, together: two of the largest, about 3 ms, for which the worker's other
/// tenants wait.
pub const BITOP_BYTES: usize = 16 << 20;
/// Keys that BITOP combines: about 0.1 ms when all of them come from memory.
pub const BITOP_KEYS: usize = 1_000;
/// Operations of one BITFIELD: about 0.1 ms.
pub const BITFIELD_OPS: usize = 4_096;
/// Lengths, each and one more, that LCS multiplies: as many steps, of about a nanosecond, and two bytes for each. 511
/// bytes and as many.
pub const LCS_CELLS: usize = 1 << 18;
