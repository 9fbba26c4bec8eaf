//! expect: refused impl-parameter
//! rust-lang/rust 84366: a promoted iterator of our own says static without a leak.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::fmt::Display;
struct It<F>(F);
impl<T, F: Fn() -> T> Iterator for It<F> { type Item = T; fn next(&mut self) -> Option<T> { None } }
fn f<I: Iterator>(_: &'static I, v: I::Item) -> Box<dyn Display> where I::Item: Display { Box::new(v) }
fn forget<'a>(v: &'a str) -> Box<dyn Display> { f(&It(|| -> &'a str { loop {} }), v) }
fn attack() -> String { let b = { let s = String::from("gone gone gone"); forget(&s) }; b.to_string() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
