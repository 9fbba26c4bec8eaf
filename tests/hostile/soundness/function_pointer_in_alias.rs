//! expect: refused fn-pointer
//! A function pointer behind a type alias.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

type Call = fn(u8) -> u8;

fn twice(x: u8) -> u8 {
    x.wrapping_mul(2)
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let call: Call = twice;
    _db.reply(&[call(3)])
}
