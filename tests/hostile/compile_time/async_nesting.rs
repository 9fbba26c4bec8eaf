//! expect: limit or compile-error or ok or refused
//! Async blocks inside of async blocks.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let _future = <<<60*async { >>>1u8<<<60* }>>>;
    db.reply(b"x")
}
