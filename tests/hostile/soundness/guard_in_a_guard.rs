//! expect: refused stale
//! A match in a guard, whose own guard takes what the outer one looked at.
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;

enum Never {}
fn never() -> Never { loop {} }
fn read(mut x: Option<Box<Box<u64>>>, y: u8) -> u64 {
    match x {
        Some(_) if (match y { 0 if x.take().is_some() => false, _ => x.take().is_none() }) && match never() {} => 0,
        Some(ref found) => ***found,
        None => 1,
    }
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let x = Some(Box::new(Box::new(7)));
    db.reply(&(read(x, 0) as u64).to_le_bytes())
}
