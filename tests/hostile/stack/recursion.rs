//! expect: killed StackOverflow
//! Calls itself for ever.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

fn deeper(depth: u64) -> u64 {
    let here = core::hint::black_box([depth; 16]);
    if core::hint::black_box(depth) == 0 {
        return 0;
    }
    core::hint::black_box(deeper(depth + 1)) + here[0]
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(&deeper(1).to_le_bytes())
}
