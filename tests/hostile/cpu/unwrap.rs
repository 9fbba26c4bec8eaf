//! expect: killed Panic
//! Unwraps nothing.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let first = _args.get(1000).copied().unwrap();
    _db.reply(&[first])
}
