//! expect: refused or ok or compile-error
//! Lines that end in carriage returns alone: a comment that goes on for one reader ends for another.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

// harmless  pub const X: &str = include_str!("/etc/passwd");
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(b"x")
}
