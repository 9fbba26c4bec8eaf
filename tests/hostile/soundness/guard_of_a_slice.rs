//! expect: refused stale
//! A slice becomes another in the guard of a pattern of its elements.
#![no_std]
#![forbid(unsafe_code)]
#![allow(warnings)]
use sandstorm_api::prelude::*;

enum Never {}
fn never() -> Never { loop {} }
fn first(mut x: &[u64]) -> u64 {
    match *x {
        [_, _, ..] if x.split_off_first().is_some() && match never() {} => 0,
        [.., one, other] => one + other,
        _ => 1,
    }
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> {
    let x = [1, 2];
    db.reply(&(first(&x) as u64).to_le_bytes())
}
