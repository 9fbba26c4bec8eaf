//! expect: killed StackOverflow
//! Large frames inside of a callback of the library.
#![no_std]
#![forbid(unsafe_code)]

use sandstorm_api::prelude::*;

#[inline(never)]
fn eat(depth: u32) -> u64 {
    let a = core::hint::black_box([u64::from(depth); 40_000]);
    a[3] + core::hint::black_box(eat(depth + 1))
}

pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> {
    let _ = (&db, args);
    let mut v = vec![1u64, 2, 3];
    v.sort_by_key(|x| eat(*x as u32));
    db.reply(b"x")
}
