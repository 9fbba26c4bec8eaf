//! expect: killed StackOverflow
//! Replies from ever deeper in the stack.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[inline(never)]
fn deep(db: Db<'_>, depth: u32) -> u64 {
    let here = core::hint::black_box([depth; 4]);
    let done = u64::from(db.reply(&[]).is_ok());
    core::hint::black_box(done + deep(db, depth + 1)) + u64::from(here[0])
}

pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    deep(db, 0);
    Ok(())
}
