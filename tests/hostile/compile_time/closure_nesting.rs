//! expect: limit or compile-error or ok or refused
//! Closures inside of closures, a hundred deep.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let f = <<<100*|| >>>1u8;
    let _f = f;
    db.reply(b"x")
}
