//! Limits of memory beside slabs.

/// Records too long for a piece of an extent have mappings of their own, of whole pages of so many bytes.
pub const MAPPED_STEP_BYTES: usize = 4096;
/// Of these, bytes that are kept for the next ones: a fresh page has to be zeroed by the kernel, which takes as long as to fill it.
pub const SPARE_MAPPED_BYTES: usize = 32 << 20;
