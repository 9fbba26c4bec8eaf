//! Limits of this crate: name, default, unit, reason.

/// Workers, at most: their idle marks are the bits of one word.
pub const MAX_WORKERS: usize = 64;
