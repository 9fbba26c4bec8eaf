//! expect: refused macro
//! A file of the builder into the reply.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(include_str!("/etc/passwd").as_bytes())
}
