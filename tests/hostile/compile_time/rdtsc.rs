//! expect: refused
//! A clock that is finer than any that we give.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let now = core::arch::x86_64::_rdtsc();
    _db.reply(&now.to_le_bytes())
}
