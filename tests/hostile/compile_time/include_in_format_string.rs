//! expect: refused macro
//! The same as the format string of a permitted macro.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(format!(include_str!("/etc/hostname")).as_bytes())
}
