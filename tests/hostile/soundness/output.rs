//! expect: compile-error
//! rust-lang/rust 84366: F::Output, without an iterator.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::fmt::Display;
fn f<'x, F: FnOnce() -> R, R: Display>(_: &'x F, v: F::Output) -> Box<dyn Display + 'x> where F::Output: Display { Box::new(v) }
fn forget<'a>(v: &'a str) -> Box<dyn Display> { f(&|| -> &'a str { "" }, v) }
fn attack() -> String { let b = { let s = String::from("gone gone gone"); forget(&s) }; b.to_string() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
