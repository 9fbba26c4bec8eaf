//! expect: refused guard
//! rust-lang/rust 160525: with an assignment that takes apart.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
fn attack() -> String {
    let mut arr = [[Box::new([42u64; 8])], [Box::new([43u64; 8])]];
    let mut a; let b;
    let alias = &mut arr[0][{ [a, b] = arr; 0 }];
    drop(a);
    let t = Box::new([0x4141414141414141u64; 8]);
    let r = format!("{:x?}", alias); drop(t); r
}
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
