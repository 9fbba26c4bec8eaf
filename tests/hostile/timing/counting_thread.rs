//! expect: refused
//! A counter that another thread moves, in place of a clock.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    static TICKS: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
    db.reply(&TICKS.load(core::sync::atomic::Ordering::Relaxed).to_le_bytes())
}
