//! expect: killed OutOfMemory or killed StackOverflow or not-loaded or limit
//! A future of 64 MiB: state kept across a yield.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let big = [_args.len() as u8; 64 << 20];
    yield_now().await;
    _db.reply(&big[..1])
}
