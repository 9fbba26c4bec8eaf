//! expect: compile-error
//! rust-lang/rust 84366: only functions of core, given as values.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::iter::Peekable; use core::ops::Deref;
fn attack() -> String {
    let mut p = core::iter::repeat_with(|| -> &str { "" }).peekable();
    let r: &str;
    { let s = String::from("gone gone gone"); *p.peek_mut().unwrap() = &s; r = Some(&mut p).map(Peekable::peek).map(Option::unwrap).map(Deref::deref).unwrap(); }
    let t = String::from("other other one"); r.to_owned()
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
