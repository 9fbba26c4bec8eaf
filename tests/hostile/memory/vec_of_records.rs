//! expect: ok or killed TotalBudget
//! Holds what it read, and forgets it.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let table = db.table("t")?;
    for _ in 0..200 {
        core::mem::forget(db.get(table, b"k").await?);
        core::mem::forget(Box::new(db.get(table, b"k")));
    }
    db.reply(b"x")
}
