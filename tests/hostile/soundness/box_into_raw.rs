//! expect: refused address
//! A pointer by a safe method of a box.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let p = Box::into_raw(Box::new(1u8));
    db.reply(&[p.is_null() as u8])
}
