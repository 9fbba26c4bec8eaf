//! Numbers of records for protocols that promise that no two records ever have the same one.
//!
//! Versions are counted for each stripe, so records of two stripes may have the same one. A version followed by the
//! number of its stripe is unique in the table: within a stripe no version is given twice, across delete and re-insert
//! as well. The numbers of one key grow as its versions do. A counter of the table's own would do the same at the price
//! of a line that all its writers contend for.

use super::RecordTable;
use super::buckets::stripe_of;
use crate::limits::STRIPES;

/// Bits of the stripe.
const STRIPE_BITS: u32 = STRIPES.trailing_zeros();

impl RecordTable {
    /// Returns the number of the record with this version, of the key with this hash.
    #[inline]
    pub fn number_of(hash: u64, version: u64) -> u64 {
        version << STRIPE_BITS | stripe_of(hash) as u64
    }

    /// Returns the version of a number, for a key with this hash. It is 0, which no record has, for a number of no
    /// record of that key.
    #[inline]
    pub fn version_of(hash: u64, number: u64) -> u64 {
        let is_here = number % STRIPES as u64 == stripe_of(hash) as u64;
        if is_here { number >> STRIPE_BITS } else { 0 }
    }

    /// Longest value in bytes.
    #[inline]
    pub fn max_value_len(&self) -> usize {
        self.config.max_value_len
    }
}
