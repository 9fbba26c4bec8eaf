//! expect: compile-error or refused
//! A trait of the API on a type of the API.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

impl Drop for Db<'_> {
    fn drop(&mut self) {}
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(b"x")
}
