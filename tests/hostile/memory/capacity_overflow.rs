//! expect: killed Panic
//! Asks for more than an address can name.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let big = Vec::<u64>::with_capacity(usize::MAX / 2);
    _db.reply(&big.capacity().to_le_bytes())
}
