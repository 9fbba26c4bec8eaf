//! expect: refused
//! The same behind a reference in a constant.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

use core::sync::atomic::AtomicU8;

static HIDDEN: AtomicU8 = AtomicU8::new(0);
const CELL: &AtomicU8 = &HIDDEN;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(&[CELL.fetch_add(1, core::sync::atomic::Ordering::Relaxed)])
}
