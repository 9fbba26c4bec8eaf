//! expect: killed StackOverflow
//! Two functions that call each other for ever.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[inline(never)]
fn even(depth: u64) -> u64 {
    let here = core::hint::black_box([depth; 8]);
    core::hint::black_box(odd(depth + 1)) + here[0]
}

#[inline(never)]
fn odd(depth: u64) -> u64 {
    let here = core::hint::black_box([depth; 8]);
    core::hint::black_box(even(depth + 1)) + here[0]
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(&even(1).to_le_bytes())
}
