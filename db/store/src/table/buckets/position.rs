//! The position of a hash: its stripe, and its bucket in an array. Both have the order of the hashes.

use crate::limits::STRIPES;

/// Returns the stripe of a hash, in arrays of any size.
#[inline]
pub(in crate::table) fn stripe_of(hash: u64) -> usize {
    (hash >> (64 - STRIPES.trailing_zeros())) as usize
}

/// Returns the bucket of a hash in an array of `count` buckets.
#[inline(always)]
pub(super) fn bucket_index(hash: u64, count: usize) -> usize {
    ((u128::from(hash) * count as u128) >> 64) as usize
}
