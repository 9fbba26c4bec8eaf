//! expect: ok
//! An empty key and an empty value.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    db.put(table, b"", b"").await?;
    let empty = db.get(table, b"").await?.ok_or("gone")?;
    db.delete(table, b"").await?;
    db.reply(&[empty.key().len() as u8, empty.value().len() as u8])
}
