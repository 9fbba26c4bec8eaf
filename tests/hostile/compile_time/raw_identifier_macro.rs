//! expect: refused
//! A forbidden macro by a raw identifier and a path.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(core::r#include_str!("/etc/passwd").as_bytes())
}
