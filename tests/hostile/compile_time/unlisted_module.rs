//! expect: refused or ok
//! A file that no module names, with what is forbidden: it must not be compiled.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(b"x")
}

//@ file: src/unseen.rs
pub const X: &str = include_str!("/etc/passwd");
