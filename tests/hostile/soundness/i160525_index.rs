//! expect: refused index
//! rust-lang/rust 160525: an index moves out of the array that it is an index of.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
fn attack() -> String {
    let mut arr = [[Box::new([42u64; 8])]];
    let alias = &mut arr[0][{ let [row] = arr; drop(row); 0 }];
    let t = Box::new([0x4141414141414141u64; 8]);
    let r = format!("{:x?}", alias); drop(t); r
}
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
