//! expect: killed StackOverflow or killed OutOfMemory
//! Allocates from ever deeper in the stack.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[inline(never)]
fn deep(depth: u64) -> u64 {
    let here = core::hint::black_box(Box::new(depth));
    core::hint::black_box(deep(depth + 1)) + *here
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(&deep(0).to_le_bytes())
}
