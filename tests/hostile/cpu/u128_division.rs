//! expect: killed TotalBudget
//! The slowest instruction sequence that the compiler has, for ever.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let mut x = u128::MAX;
    loop {
        x = core::hint::black_box(x) / core::hint::black_box(3) ^ u128::MAX;
    }
}
