//! expect: refused attribute
//! A file in the place of a lint's reason.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[expect(unused_variables, reason = include_str!("/etc/passwd"))]
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    db.reply(b"x")
}
