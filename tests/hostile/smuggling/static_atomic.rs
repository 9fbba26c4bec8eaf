//! expect: refused static
//! A counter that outlives its call.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

use core::sync::atomic::AtomicU64;

static CALLS: AtomicU64 = AtomicU64::new(0);

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let calls = CALLS.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
    _db.reply(&calls.to_le_bytes())
}
