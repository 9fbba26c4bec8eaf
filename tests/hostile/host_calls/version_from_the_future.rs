//! expect: failed Conflict
//! Asks for a version that was never written.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    db.put(table, b"k", b"v").if_version(u64::MAX).await?;
    Ok(())
}
