//! expect: ok or killed TotalBudget or failed OutOfMemory
//! Reads, overwrites and deletes in a circle, and holds all that it read.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let table = db.table("t")?;
    let mut held = Vec::new();
    for n in 0..300u32 {
        held.push(db.get(table, b"k").await?);
        db.put(table, b"k", &[n as u8; 1000]).await?;
        if n % 7 == 0 {
            db.delete(table, b"k").await?;
        }
    }
    for (n, record) in held.iter().enumerate() {
        if let Some(record) = record {
            assert!(n == 0 || record.value().iter().all(|byte| *byte == (n - 1) as u8));
        }
    }
    db.reply(b"x")
}
