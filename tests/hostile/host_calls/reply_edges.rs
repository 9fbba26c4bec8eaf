//! expect: failed TooLarge
//! A reply over its limit by one byte.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let piece = vec![0u8; 1 << 16];
    for _ in 0..16 {
        db.reply(&piece)?;
    }
    db.reply(b"")?;
    db.reply(b"1")
}
