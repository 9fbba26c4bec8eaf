//! expect: refused or compile-error
//! A file that is declared twice, once as a test.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[cfg(test)]
mod a;
#[cfg(not(test))]
mod a;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(a::X.as_bytes())
}

//@ file: src/a.rs
pub const X: &str = include_str!("/etc/passwd");
