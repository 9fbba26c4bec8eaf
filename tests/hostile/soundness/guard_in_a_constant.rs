//! expect: refused stale
//! In a function for constants.
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;

enum Never {}
const fn never() -> Never { loop {} }
const fn read(mut x: Option<u64>) -> u64 {
    match x {
        Some(_) if x.take().is_none() && match never() {} => 0,
        Some(ref found) => *found,
        None => 1,
    }
}
const X: u64 = read(None);
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    
    db.reply(&(X + read(Some(1)) as u64).to_le_bytes())
}
