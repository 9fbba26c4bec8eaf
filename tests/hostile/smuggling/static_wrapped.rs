//! expect: refused
//! The same inside of a struct.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

struct Wrapped(core::sync::atomic::AtomicU8);

static CELL: Wrapped = Wrapped(core::sync::atomic::AtomicU8::new(0));

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(&[CELL.0.fetch_add(1, core::sync::atomic::Ordering::Relaxed)])
}
