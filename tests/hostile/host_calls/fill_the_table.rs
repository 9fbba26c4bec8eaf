//! expect: failed OutOfMemory or killed TotalBudget
//! Writes until there is no more room.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    let mut number = 0u64;
    loop {
        db.put(table, &number.to_le_bytes(), &[0; 4096]).await?;
        number += 1;
    }
}
