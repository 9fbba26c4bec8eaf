//! expect: failed NotANumber
//! Adds until a number is full.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    db.put(table, b"n", b"9223372036854775807").await?;
    db.increment(table, b"n", 1).await?;
    Ok(())
}
