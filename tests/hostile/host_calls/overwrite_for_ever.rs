//! expect: killed TotalBudget
//! Overwrites one record for ever: the old ones must go as fast.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    loop {
        db.put(table, b"k", &[0; 4096]).await?;
    }
}
