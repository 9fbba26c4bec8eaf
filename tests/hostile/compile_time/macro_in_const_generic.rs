//! expect: refused
//! A forbidden macro inside of a constant argument.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct N<const S: usize>;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let _n: N<{ include_bytes!("/etc/passwd").len() }> = N;
    db.reply(b"x")
}
