//! expect: compile-error
//! Writes into a record that was read.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let table = db.table("t")?;
    let record = db.get(table, b"k").await?.ok_or(Error::invalid("none"))?;
    record.value()[0] = 1;
    db.reply(b"x")
}
