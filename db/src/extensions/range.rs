//! The host's function that reads a range of an ordered table.
//!
//! Guarantees: it touches nothing but the invocation's own tables.
#![allow(unsafe_code)]

use sandstorm_api::abi::{self, RawRange, RawRecord};

use super::host::call;
use super::invocation::Body;
use crate::store::Participant;

pub(super) unsafe extern "C" fn range(
    invocation: *mut abi::Invocation,
    table: u64,
    _range: *mut RawRange,
    _out: *mut RawRecord,
    _limit: usize,
    filled: *mut usize,
) -> u32 {
    // SAFETY: the library's count outlives the call.
    let read = |body: &mut Body, _: &Participant| unsafe {
        filled.write(0);
        // No table of the server's is ordered.
        body.table(table).map_or_else(|status| status, |_| abi::STATUS_NOT_ORDERED)
    };
    // SAFETY: this is a host function.
    unsafe { call(invocation, read) }
}
