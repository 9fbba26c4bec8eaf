//! expect: refused or limit
//! A thousand files.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

mod f0;

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    db.reply(b"x")
}
<<<1000*
//@ file: src/f{n}.rs
pub const X: u32 = {n};
>>>