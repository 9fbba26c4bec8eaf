//! expect: killed TotalBudget
//! Arithmetic on denormal numbers, for ever.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let mut x = f64::MIN_POSITIVE;
    loop {
        x = core::hint::black_box(x) * 0.5 + f64::MIN_POSITIVE;
    }
}
