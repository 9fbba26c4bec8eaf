//! expect: ok
//! Expires in more milliseconds than there will be.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    db.put(table, b"late", b"v").expires_in_ms(u64::MAX).await?;
    let found = db.get(table, b"late").await?.is_some();
    db.delete(table, b"late").await?;
    db.reply(&[u8::from(found)])
}
