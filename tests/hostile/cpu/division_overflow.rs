//! expect: killed Panic or killed DivisionByZero
//! Divides the smallest number by minus one.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let (low, minus) = (core::hint::black_box(i32::MIN), core::hint::black_box(-1));
    _db.reply(&(low / minus).to_le_bytes())
}
