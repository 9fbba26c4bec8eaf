//! expect: refused
//! A forbidden macro inside of a closure inside of an assertion.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    assert!((|| option_env!("HOME").is_none())());
    db.reply(b"x")
}
