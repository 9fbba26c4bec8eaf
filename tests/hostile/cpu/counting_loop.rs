//! expect: killed TotalBudget
//! Counts for ever.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let mut turns = 0u64;
    loop {
        turns = core::hint::black_box(turns.wrapping_add(1));
    }
}
