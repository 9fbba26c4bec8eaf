//! expect: ok
//! Deletes what it scans, while it scans.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    for number in 0..100u64 {
        db.put(table, &number.to_le_bytes(), b"x").await?;
    }
    let mut next = Some(Default::default());
    while let Some(cursor) = next {
        let page = db.scan(table, cursor, 16)?;
        for record in &page.records {
            if record.value() == b"x" {
                db.delete(table, record.key()).await?;
            }
        }
        next = page.next;
    }
    Ok(())
}
