//! expect: ok or killed TotalBudget or killed OutOfMemory
//! Reads a hundred thousand keys in one call.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    let keys = vec![*b"k"; 100_000];
    let records = db.get_many(table, &keys).await?;
    db.reply(&records.len().to_le_bytes())
}
