//! expect: killed OutOfMemory
//! Allocates for ever and keeps it all.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    let mut kept = Vec::new();
    loop {
        kept.push(vec![1u8; 64 << 10]);
    }
}
