//! expect: refused union
//! A transmute by union.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

union U {
    number: u64,
    text: core::mem::ManuallyDrop<&'static [u8]>,
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(b"x")
}
