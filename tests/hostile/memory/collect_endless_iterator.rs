//! expect: killed OutOfMemory or killed Panic
//! Collects an iterator that has no end.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let all: Vec<u64> = (0u64..).collect();
    _db.reply(&all.len().to_le_bytes())
}
