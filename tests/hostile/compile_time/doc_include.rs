//! expect: refused
//! A file by way of a documentation attribute in its nested form.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[doc = core::include_str!("/etc/passwd")]
mod x {}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(b"x")
}
