//! expect: refused stale
//! In the guard of `matches!`.
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;

enum Never {}
fn never() -> Never { loop {} }
fn read(mut x: Option<Box<Box<u64>>>) -> bool {
    matches!(x, Some(_) if x.take().is_none() && match never() {}) || matches!(x, Some(ref found) if ***found == 1)
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let x = Some(Box::new(Box::new(7)));
    db.reply(&(read(x) as u64).to_le_bytes())
}
