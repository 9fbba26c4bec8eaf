//! expect: refused static
//! The same inside of a function.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    static CALLS: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
    let calls = CALLS.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
    _db.reply(&calls.to_le_bytes())
}
