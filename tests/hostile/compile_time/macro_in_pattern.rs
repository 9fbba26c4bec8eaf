//! expect: refused
//! A forbidden macro in the place of a pattern.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    match args.len() {
        line!() => db.reply(b"1"),
        concat!() => db.reply(b"2"),
        _ => Ok(()),
    }
}
