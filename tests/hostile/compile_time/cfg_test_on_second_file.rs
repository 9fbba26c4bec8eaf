//! expect: refused or compile-error
//! A file that is a test for one declaration and none for another.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[cfg(test)]
mod a;
mod b {
    #[path = "../a.rs"]
    pub mod a;
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(b::a::X.as_bytes())
}

//@ file: src/a.rs
pub const X: &str = include_str!("/etc/passwd");
