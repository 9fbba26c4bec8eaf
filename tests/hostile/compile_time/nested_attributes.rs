//! expect: refused
//! Attributes nested through cfg_attr.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[cfg_attr(all(), cfg_attr(all(), unsafe(no_mangle)))]
pub extern "C" fn malloc() {}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(b"x")
}
