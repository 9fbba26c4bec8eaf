//! expect: limit or compile-error or refused
//! A static of 4 GiB.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

static HUGE: [u8; 4 << 30] = [1; 4 << 30];

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(&HUGE[_args.len()..][..1])
}
