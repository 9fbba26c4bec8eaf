//! expect: ok
//! Starts writes, and polls them the other way round.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let table = db.table("t")?;
    let one = db.put(table, b"k", b"1");
    let two = db.delete(table, b"k");
    let three = db.increment(table, b"k", 5);
    let _ = three.await;
    let _ = two.await;
    let _ = one.await;
    let record = db.get(table, b"k").await?;
    db.reply(record.map_or(b"none", |record| record.value()))
}
