//! expect: refused or compile-error
//! A constant that refers to an atomic: promoted, it would be shared.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

use core::sync::atomic::AtomicU8;

const SHARED: &AtomicU8 = &AtomicU8::new(0);

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(&[SHARED.fetch_add(1, core::sync::atomic::Ordering::Relaxed)])
}
