//! expect: ok or failed TooLarge
//! Reads a key over its limit.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    let found = db.get(table, &vec![1; 1 << 20]).await?;
    db.reply(&[u8::from(found.is_some())])
}
