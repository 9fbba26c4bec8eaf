//! expect: ok or refused
//! An attribute on an expression.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    #[rustfmt::skip]
    let x = 1u8;
    db.reply(&[x])
}
