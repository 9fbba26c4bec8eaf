//! expect: refused
//! A forbidden macro under the name of a harmless one, by import.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

use core::include_str as format;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(format!("/etc/passwd").as_bytes())
}
