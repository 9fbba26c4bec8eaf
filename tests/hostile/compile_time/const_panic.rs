//! expect: compile-error
//! A constant that panics.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

const X: u8 = [1u8][usize::MAX];

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(&[X])
}
