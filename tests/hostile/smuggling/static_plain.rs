//! expect: refused static
//! A static that holds a plain number: a constant does the same.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

static LIMIT: u8 = 7;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(&[LIMIT])
}
