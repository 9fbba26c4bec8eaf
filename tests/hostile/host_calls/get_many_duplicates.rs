//! expect: ok
//! One key a thousand times, and no key at all.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let table = db.table("t")?;
    let keys = [b"k"; 1000];
    let found = db.get_many(table, &keys).await?;
    let none: [&[u8]; 0] = [];
    let nothing = db.get_many(table, &none).await?;
    db.reply(&(found.len() + nothing.len()).to_le_bytes())
}
