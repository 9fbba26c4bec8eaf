//! expect: refused index
//! rust-lang/rust 160525: the pattern takes the rest.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
fn attack() -> String {
    let mut arr = [[Box::new([1u64; 8])], [Box::new([2u64; 8])], [Box::new([3u64; 8])]];
    let alias = &mut arr[1][{ let [rest @ .., _] = arr; drop(rest); 0 }];
    let t = Box::new([0x4141414141414141u64; 8]);
    let r = format!("{:x?}", alias); drop(t); r
}
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
