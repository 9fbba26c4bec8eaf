//! expect: refused macro
//! The same by its full path.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(core::include_bytes!("/etc/passwd"))
}
