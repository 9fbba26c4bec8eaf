//! expect: failed TooLarge
//! A key over its limit.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    db.put(table, &vec![1; (64 << 10) + 1], b"v").await?;
    Ok(())
}
