//! expect: refused closure-result
//! rust-lang/rust 118876 with a closure that says what it returns.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

struct Bounded<'a, 'b: 'a, T: ?Sized>(&'a T, [&'b (); 0]);
fn extend<'a, T: ?Sized>(input: &'a T) -> &'static T {
    let n = |x: &'a T| -> Bounded<'static, '_, T> { Bounded(x, []) };
    n(input).0
}
fn attack() -> &'static str { let s = String::from("gone"); extend(s.as_str()) }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
