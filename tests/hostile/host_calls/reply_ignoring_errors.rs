//! expect: killed TotalBudget
//! Replies without end and does not listen.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    loop {
        core::hint::black_box(db.reply(&[0; 4096]).is_ok());
    }
}
