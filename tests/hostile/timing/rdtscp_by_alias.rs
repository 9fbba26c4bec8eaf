//! expect: refused path
//! The processor's own clock, by another name of its module.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    use core::arch::x86_64 as clock;
    let mut id = 0;
    let ticks = clock::__rdtscp(&mut id);
    db.reply(&ticks.to_le_bytes())
}
