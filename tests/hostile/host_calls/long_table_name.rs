//! expect: failed UnknownTable or failed TooLarge or failed Invalid
//! A table name of a mebibyte.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    db.table(&"x".repeat(1 << 20))?;
    Ok(())
}
