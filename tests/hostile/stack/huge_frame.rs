//! expect: killed StackOverflow
//! One frame of 16 MiB: it must not step over the guard page.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[inline(never)]
fn huge() -> u8 {
    let frame = core::hint::black_box([1u8; 16 << 20]);
    frame[core::hint::black_box(4096)]
}

pub async fn run(_db: Db<'_>, _args: &[u8]) -> Result<(), Error> {
    _db.reply(&[huge()])
}
