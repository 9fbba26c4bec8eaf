//! expect: refused fn-pointer
//! A function pointer: the shape that the lifetime holes need.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

fn twice(x: u8) -> u8 {
    x.wrapping_mul(2)
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let call: fn(u8) -> u8 = twice;
    _db.reply(&[call(3)])
}
