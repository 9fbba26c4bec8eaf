//! expect: killed StackOverflow or killed Panic
//! Panics near the end of the stack.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[inline(never)]
fn deep(depth: u64) -> u64 {
    let here = core::hint::black_box([depth; 2]);
    if depth == core::hint::black_box(100_000_000) {
        panic!("deep down");
    }
    core::hint::black_box(deep(depth + 1)) + here[0]
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(&deep(0).to_le_bytes())
}
