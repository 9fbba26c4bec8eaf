//! expect: refused path
//! The processor's own clock.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let ticks = core::arch::x86_64::_rdtsc();
    db.reply(&ticks.to_le_bytes())
}
