//! expect: refused macro
//! The same as the pattern of a permitted macro.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let hit = matches!(_args, include_bytes!("/etc/hostname"));
    _db.reply(&[u8::from(hit)])
}
