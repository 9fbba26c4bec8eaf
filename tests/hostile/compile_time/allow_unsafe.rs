//! expect: refused unsafe
//! Forbids nothing and allows unsafe code instead.
#![no_std]
#![allow(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let byte = unsafe { *(16 as *const u8) };
    _db.reply(&[byte])
}
