//! expect: killed OutOfMemory
//! Asks for a gibibyte at once.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let big = Vec::<u8>::with_capacity(1 << 30);
    _db.reply(&big.capacity().to_le_bytes())
}
