//! expect: refused
//! A forbidden macro in a nested group of imports.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

use core::{fmt, {include_bytes as vec}};

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(vec!("/etc/passwd"))
}
