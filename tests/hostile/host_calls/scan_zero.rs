//! expect: failed Invalid
//! A page of nothing.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    let page = db.scan(table, Default::default(), 0)?;
    db.reply(&page.records.len().to_le_bytes())
}
