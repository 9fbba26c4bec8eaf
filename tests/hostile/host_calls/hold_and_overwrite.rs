//! expect: ok
//! Holds a record while it overwrites it.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    db.put(table, b"held", b"old").await?;
    let held = db.get(table, b"held").await?.ok_or("gone")?;
    for number in 0..50u64 {
        db.put(table, b"held", &number.to_le_bytes()).await?;
    }
    db.delete(table, b"held").await?;
    yield_now().await;
    if held.value() == b"old" { Ok(()) } else { Err(Error::new("a held record changed")) }
}
