//! expect: refused unsafe
//! Unsafe code in a module of its own file.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

mod second;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(&[second::wild()])
}

//@ file: src/second.rs
pub fn wild() -> u8 {
    unsafe { *(16 as *const u8) }
}
