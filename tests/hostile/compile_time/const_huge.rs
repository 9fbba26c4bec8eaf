//! expect: limit or compile-error or refused
//! A constant of 8 GiB.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

const HUGE: [u8; 8 << 30] = [1; 8 << 30];

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(&HUGE[..1])
}
