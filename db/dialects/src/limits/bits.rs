//! Bounds of Redis commands that are not run in pieces: on bits of several values, and on parts of two.

/// Bytes of the values that BITOP combines, together: two of the largest, about 3 ms. The worker's other tenants wait
/// for that.
pub const BITOP_BYTES: usize = 16 << 20;
/// Keys that BITOP combines: about 0.1 ms when all of them come from memory.
pub const BITOP_KEYS: usize = 1_000;
/// Operations of one BITFIELD: about 0.1 ms.
pub const BITFIELD_OPS: usize = 4_096;
/// Product of the lengths, each plus one, that LCS may have: as many steps of about a nanosecond, with two bytes each.
/// It allows for 511 bytes and 511 bytes.
pub const LCS_CELLS: usize = 1 << 18;
