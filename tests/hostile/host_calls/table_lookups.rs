//! expect: ok or killed TotalBudget
//! Looks a hundred thousand tables up.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let mut there = 0u32;
    for n in 0..100_000u32 {
        there += u32::from(db.table(&format!("t{n}")).is_ok());
        if n % 64 == 0 {
            yield_now().await;
        }
    }
    db.reply(&there.to_le_bytes())
}
