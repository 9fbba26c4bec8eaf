//! expect: killed TotalBudget
//! Drains an iterator that has no end.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let count = core::iter::repeat(core::hint::black_box(1u64)).fold(0u64, |sum, x| core::hint::black_box(sum ^ x));
    _db.reply(&count.to_le_bytes())
}
