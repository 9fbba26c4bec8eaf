//! expect: refused or compile-error or ok
//! Two files whose names differ in case alone.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

mod a;
mod A;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(b"x")
}

//@ file: src/a.rs
pub const X: u32 = 1;

//@ file: src/A.rs
pub const X: u32 = 2;
