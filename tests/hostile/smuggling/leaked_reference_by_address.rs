//! expect: refused special
//! Leaves an address in a record; no code can follow it without unsafe.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    let leaked: &'static u64 = Box::leak(Box::new(7));
    let address = (&raw const *leaked).addr();
    db.put(table, b"address", &address.to_le_bytes()).await?;
    Ok(())
}
