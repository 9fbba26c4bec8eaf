//! expect: refused guard
//! rust-lang/rust 160525: in a future, across an await.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
async fn attack() -> String {
    let mut arr = [[Box::new([42u64; 8])]];
    let alias = &mut arr[0][{ let [row] = arr; yield_now().await; drop(row); 0 }];
    let t = Box::new([0x4141414141414141u64; 8]);
    let r = format!("{:x?}", alias); drop(t); r
}
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack().await; db.reply(s.as_bytes()) }
