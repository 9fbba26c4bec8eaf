//! expect: not-loaded or refused or ok or limit or killed OutOfMemory
//! A future of a little more than a mebibyte.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let mut a = [1u8; (1 << 20) + 4096];
    yield_now().await;
    a[args.len()] = 2;
    core::hint::black_box(&a);
    db.reply(&a[..1])
}
