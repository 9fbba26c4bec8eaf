//! expect: refused
//! A derive under another name, by import.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

use core::clone::Clone as Helper;

#[derive(Helper)]
struct S;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(b"x")
}
