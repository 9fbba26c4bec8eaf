//! expect: refused guard
//! An await in an index: the compiler forgets the index before it, after its check.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
#[inline(never)]
fn pick(n: usize) -> usize { n }
async fn write(arr: &mut [[u64; 2]], i: usize, v: u64) { arr[i][{ yield_now().await; 1 }] = v; }
async fn attack() -> String {
    let mut arr = vec![[1u64, 2], [3, 4], [5, 6], [7, 8]];
    for i in 0..4 { write(&mut arr, i, 100 + i as u64).await; }
    format!("{arr:?}")
}
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack().await; db.reply(s.as_bytes()) }
