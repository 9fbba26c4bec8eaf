//! expect: refused erased
//! rust-lang/rust 84366: the output of an async block in place of a closure's.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::future::Future; use core::fmt::Display;
fn f<I: Future>(_: &'static I, v: I::Output) -> Box<dyn Display> where I::Output: Display { Box::new(v) }
fn forget<'a>(v: &'a str) -> Box<dyn Display> { f(Box::leak(Box::new(async { let r: &'a str = loop {}; r })), v) }
fn attack() -> String { let b = { let s = String::from("gone gone gone"); forget(&s) }; b.to_string() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
