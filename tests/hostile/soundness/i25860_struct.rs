//! expect: compile-error
//! rust-lang/rust 25860: the implied bound stands in a struct.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

struct P<'a, 'b>(&'a &'b (), &'b str);
fn witness<'a, 'b>(p: P<'a, 'b>) -> &'a str { p.1 }
fn call<'x>(f: impl Fn(P<'static, 'x>) -> &'static str, v: P<'static, 'x>) -> &'static str { f(v) }
fn attack() -> &'static str { let s = String::from("gone"); call(witness, P(&&(), s.as_str())) }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
