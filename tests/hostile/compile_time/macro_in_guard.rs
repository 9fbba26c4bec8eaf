//! expect: refused
//! A forbidden macro in the guard of an arm.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    match args {
        _ if file!().is_empty() => Ok(()),
        _ => db.reply(b"x"),
    }
}
