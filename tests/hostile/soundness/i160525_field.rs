//! expect: refused index
//! rust-lang/rust 160525: the array is a field.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
struct S { a: [[Box<[u64; 8]>; 1]; 1], b: u8 }
fn attack() -> String {
    let mut s = S { a: [[Box::new([42u64; 8])]], b: 1 };
    let alias = &mut s.a[0][{ let S { a: [r], .. } = s; drop(r); 0 }];
    let t = Box::new([0x4141414141414141u64; 8]);
    let r = format!("{:x?}", alias); drop(t); r
}
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
