//! expect: refused unsafe
//! A plain unsafe block.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let at = 16 as *const u8;
    let byte = unsafe { *at };
    _db.reply(&[byte])
}
