//! expect: failed TooLarge
//! Replies without end.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let table = db.table("t")?;
    loop {
        db.reply(&[0; 4096])?;
    }
}
