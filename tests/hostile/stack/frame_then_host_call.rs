//! expect: killed StackOverflow or ok
//! A host call with next to no stack left: it must not run off it inside of the server.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[inline(never)]
fn deep(db: Db<'_>, table: TableId, depth: u32) -> u64 {
    let here = core::hint::black_box([depth; 4]);
    let found = db.scan(table, Default::default(), 1).map_or(0, |page| page.records.len() as u64);
    core::hint::black_box(found + deep(db, table, depth + 1)) + u64::from(here[0])
}

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    deep(db, table, 0);
    Ok(())
}
