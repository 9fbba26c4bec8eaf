//! expect: refused or ok or compile-error
//! A line separator of Unicode, that ends a comment for some readers.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

// harmless   pub const X: &str = include_str!("/etc/passwd");
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(b"x")
}
