//! expect: refused address
//! Prints an address: it tells where, and no code can follow it without unsafe.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(format!("{:p}", _args).as_bytes())
}
