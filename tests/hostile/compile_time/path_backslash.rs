//! expect: refused or compile-error or limit
//! A file by a path with backslashes.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

mod a;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(b"x")
}

//@ file: src\..\..\a.rs
pub const X: u32 = 1;
