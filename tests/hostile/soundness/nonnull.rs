//! expect: refused path
//! A pointer that is never null.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

use core::ptr::NonNull;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let mut x = 1u8;
    let p = NonNull::from(&mut x);
    db.reply(&p.addr().get().to_le_bytes())
}
