//! expect: refused or compile-error
//! A second file that begins with a manifest, as scripts of cargo do.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

mod a;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(&[a::X])
}

//@ file: src/a.rs
---
[dependencies]
libc = "1"
---
pub const X: u8 = 1;
