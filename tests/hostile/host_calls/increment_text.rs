//! expect: failed NotANumber
//! Adds to a text.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    db.put(table, b"text", b"1e3").await?;
    db.increment(table, b"text", 1).await?;
    Ok(())
}
