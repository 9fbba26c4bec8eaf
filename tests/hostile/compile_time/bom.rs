//! expect: refused or ok or compile-error
//! A byte order mark in a second file, which some tools skip and others do not.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

mod a;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(&[a::X])
}

//@ file: src/a.rs
﻿pub const X: u8 = 1;
