//! expect: refused
//! A forbidden macro as the length that a vector repeats.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let bytes = vec![0u8; env!("PATH").len()];
    db.reply(&bytes)
}
