//! expect: refused guard
//! An await in an index, read through a slice.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
#[inline(never)]
fn pick(n: usize) -> usize { n }
async fn read(arr: &[[u64; 2]], i: usize) -> u64 { arr[i][{ yield_now().await; 1 }] }
async fn attack() -> String {
    let arr = vec![[1u64, 2], [3, 4], [5, 6], [7, 8]];
    let mut s = String::new();
    for i in 0..4 { s.push_str(&format!("{} ", read(&arr, i).await)); }
    s
}
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack().await; db.reply(s.as_bytes()) }
