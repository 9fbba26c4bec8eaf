//! expect: refused stale
//! The same by a method that changes its receiver, before a call of something that never returns.
#![no_std]
#![forbid(unsafe_code)]
use sandstorm_api::prelude::*;

enum Never {}
fn never() -> Never { loop {} }
fn read(mut kept: Option<Box<Box<u64>>>) -> u64 {
    match kept {
        Some(_) if kept.take().is_none() && match never() {} => 0,
        Some(ref found) => ***found,
        None => 1,
    }
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    db.reply(&read(Some(Box::new(Box::new(7)))).to_le_bytes())
}
