//! expect: refused special
//! A raw pointer by its own syntax.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let x = 1u8;
    let p = &raw const x;
    db.reply(&(p.addr()).to_le_bytes())
}
