//! expect: compile-error
//! rust-lang/rust 25860: the nested reference behind an alias, the function as impl Fn.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

fn witness<'a, 'b>(_: Two<'a, 'b>, v: &'b str) -> &'a str { v }
type Two<'a, 'b> = &'a &'b ();
fn call<'x>(f: impl Fn(&'static &'static (), &'x str) -> &'static str, v: &'x str) -> &'static str { f(&&(), v) }
fn attack() -> &'static str { let s = String::from("gone"); call(witness, s.as_str()) }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
