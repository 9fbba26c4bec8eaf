//! expect: killed TotalBudget
//! Scans for ever, without a yield.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    loop {
        core::hint::black_box(db.scan(table, Default::default(), 64)?);
    }
}
