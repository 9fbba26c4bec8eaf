//! expect: killed TotalBudget
//! Replies a lot and is ended: the reply goes nowhere.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    db.reply(&[7; 60_000])?;
    loop {}
}
