//! expect: compile-error
//! rust-lang/rust 118876 with a bound in place of a boxed closure.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

struct Bounded<'a, 'b: 'a, T: ?Sized>(&'a T, [&'b (); 0]);
fn call<'a, T: ?Sized>(f: impl FnOnce(&'a T) -> Bounded<'static, 'a, T>, input: &'a T) -> &'static T { f(input).0 }
fn attack() -> &'static str { let s = String::from("gone"); call(|x| Bounded(x, []), s.as_str()) }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
