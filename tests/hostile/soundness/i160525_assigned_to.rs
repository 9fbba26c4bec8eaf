//! expect: refused index
//! rust-lang/rust 160525: assigning drops what was taken, once more.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
fn attack() -> String {
    let mut arr = [[String::from("one")], [String::from("two")]];
    arr[0][{ let [row, _] = arr; drop(row); 0 }] = String::from("AAAAAAAAAAAA");
    let t = String::from("BBBBBBBBBBBB"); t
}
pub async fn run(db: Db<'_>, _args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
