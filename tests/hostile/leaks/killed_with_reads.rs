//! expect: killed TotalBudget
//! Is ended while it holds a thousand records.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    let mut held = Vec::new();
    for _ in 0..100 {
        held.extend(db.get(table, b"k").await?);
    }
    loop {
        core::hint::black_box(&held);
    }
}
