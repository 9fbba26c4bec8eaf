//! expect: refused stale
//! The same with a method and a call that does not return in the place of what the syntax shows.
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;

enum Never {}
fn never() -> Never { loop {} }
struct Outer { inner: Box<Inner> }
struct Inner { kept: Option<Box<Box<u64>>> }
fn read(mut x: Outer) -> u64 {
    match x.inner.kept {
        Some(_) if x.inner.kept.take().is_none() && match never() {} => 0,
        Some(ref found) => ***found,
        None => 1,
    }
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let x = Outer { inner: Box::new(Inner { kept: Some(Box::new(Box::new(7))) }) };
    db.reply(&(read(x) as u64).to_le_bytes())
}
