//! expect: killed TotalBudget
//! Reads for ever.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    loop {
        core::hint::black_box(db.get(table, b"k").await?);
    }
}
