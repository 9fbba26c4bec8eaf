//! expect: refused stale
//! A function gets the very reference that is matched through.
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;

enum Never {}
fn never() -> Never { loop {} }
fn clear(x: &mut Option<Box<Box<u64>>>) -> bool {
    *x = None;
    true
}
fn read(x: &mut Option<Box<Box<u64>>>) -> u64 {
    match *x {
        Some(_) if clear(x) && match never() {} => 0,
        Some(ref found) => ***found,
        None => 1,
    }
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let mut x = Some(Box::new(Box::new(7)));
    db.reply(&(read(&mut x) as u64).to_le_bytes())
}
