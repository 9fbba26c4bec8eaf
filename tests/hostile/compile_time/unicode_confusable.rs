//! expect: compile-error or refused
//! A name that only looks like a harmless one.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(fоrmat!("x").as_bytes())
}
