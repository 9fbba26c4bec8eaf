//! expect: compile-error
//! A reference made of zeros.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let r: &[u8] = core::mem::zeroed();
    db.reply(r)
}
