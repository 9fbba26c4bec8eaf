//! expect: killed TotalBudget
//! Works half a slice, yields, for ever: within each slice, over the total.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let mut turns = 0u64;
    loop {
        for _ in 0..100_000 {
            turns = core::hint::black_box(turns.wrapping_add(1));
        }
        yield_now().await;
    }
}
