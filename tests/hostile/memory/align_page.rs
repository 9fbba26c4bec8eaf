//! expect: refused or killed OutOfMemory or not-loaded or ok or compile-error
//! A type aligned to two pages, across a yield.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[repr(align(8192))]
struct A(u8);

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let a = A(1);
    yield_now().await;
    db.reply(&[a.0])
}
