//! expect: refused stale
//! The match is in a closure, and what is matched is captured.
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;

enum Never {}
fn never() -> Never { loop {} }
fn read(mut x: Option<Box<Box<u64>>>) -> u64 {
    let mut read = move || match x {
        Some(_) if x.take().is_none() && match never() {} => 0,
        Some(ref found) => ***found,
        None => 1,
    };
    read()
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let x = Some(Box::new(Box::new(7)));
    db.reply(&(read(x) as u64).to_le_bytes())
}
