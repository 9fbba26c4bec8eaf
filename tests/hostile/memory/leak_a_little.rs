//! expect: ok
//! Leaks a little, over and over in many calls.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    core::mem::forget(vec![7u8; 100_000]);
    _db.reply(b"x")
}
