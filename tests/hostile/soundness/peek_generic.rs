//! expect: refused projection
//! rust-lang/rust 84366: a closure gets a longer reference to the item than the item lives.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::iter::Peekable;
fn f<'x, I: Iterator>(p: &'x mut Peekable<I>, k: impl Fn(&I::Item) -> &str) -> &'x str { k(p.peek().unwrap()) }
fn attack() -> String {
    let mut p = core::iter::repeat_with(|| -> &str { "" }).peekable();
    let r: &str;
    { let s = String::from("gone gone gone"); *p.peek_mut().unwrap() = &s; r = f(&mut p, |s| *s); }
    let t = String::from("other other one"); r.to_owned()
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
