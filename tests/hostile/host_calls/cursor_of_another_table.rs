//! expect: ok or failed UnknownTable
//! Scans one table with the cursor of another state of it.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let table = db.table("t")?;
    for n in 0..2000u32 {
        db.put(table, &n.to_le_bytes(), b"v").await?;
        if n % 100 == 0 {
            yield_now().await;
        }
    }
    let page = db.scan(table, Default::default(), 10)?;
    for n in 0..2000u32 {
        db.delete(table, &n.to_le_bytes()).await?;
        if n % 100 == 0 {
            yield_now().await;
        }
    }
    let mut next = page.next;
    let mut seen = page.records.len();
    while let Some(cursor) = next {
        let page = db.scan(table, cursor, 64)?;
        seen += page.records.len();
        next = page.next;
        yield_now().await;
    }
    db.reply(&seen.to_le_bytes())
}
