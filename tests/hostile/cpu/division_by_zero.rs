//! expect: killed Panic or killed DivisionByZero
//! Divides by zero.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let zero = core::hint::black_box(0u32);
    _db.reply(&[(7 / zero) as u8])
}
