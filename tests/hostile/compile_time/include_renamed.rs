//! expect: refused
//! The same under another name.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

use core::include_str as harmless;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(harmless!("/etc/passwd").as_bytes())
}
