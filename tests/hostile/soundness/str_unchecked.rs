//! expect: compile-error
//! Text that is none, by the unchecked way.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let s = core::str::from_utf8_unchecked(args);
    db.reply(s.as_bytes())
}
