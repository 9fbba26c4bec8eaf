//! expect: refused or compile-error
//! A module in both of its places.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

mod a;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(b"x")
}

//@ file: src/a.rs
pub const X: u32 = 1;

//@ file: src/a/mod.rs
pub const X: u32 = 2;
