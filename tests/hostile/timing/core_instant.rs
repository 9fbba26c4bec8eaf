//! expect: compile-error
//! A clock in core, where there is none.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let begun = core::time::Instant::now();
    db.reply(b"x")
}
