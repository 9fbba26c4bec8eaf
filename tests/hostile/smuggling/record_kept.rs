//! expect: compile-error
//! Wants to keep a record beyond the call.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    let kept: &'static [u8] = db.get(table, b"k").await?.ok_or("gone")?.value();
    db.reply(kept)
}
