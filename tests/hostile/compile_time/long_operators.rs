//! expect: refused or limit or compile-error or ok
//! An expression of fifty thousand operators.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let x = 0u8<<<50000* ^ 1>>>;
    _db.reply(&[x])
}
