//! expect: ok
//! Expires at once, and never.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let table = db.table("t")?;
    db.put(table, b"a", b"1").expires_in_ms(0).await?;
    db.put(table, b"b", b"1").expires_in_ms(u64::MAX).await?;
    let b = db.get(table, b"b").await?;
    assert!(b.is_some());
    db.reply(b"x")
}
