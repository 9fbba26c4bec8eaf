//! expect: failed TooLarge or killed OutOfMemory
//! A value over its limit.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    db.put(table, b"k", &vec![1; (8 << 20) + 1]).await?;
    Ok(())
}
