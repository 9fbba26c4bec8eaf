//! expect: refused
//! A crate-like attribute inside of a function.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    #![feature(asm)]
    db.reply(b"x")
}
