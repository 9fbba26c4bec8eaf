//! expect: ok or refused or compile-error
//! A second file that begins like a script.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

mod a;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(&[a::X])
}

//@ file: src/a.rs
#!/bin/sh
pub const X: u8 = 1;
