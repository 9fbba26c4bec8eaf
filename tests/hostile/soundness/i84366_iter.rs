//! expect: refused erased
//! rust-lang/rust 84366: RepeatWith claims to be static, and its item becomes a boxed object.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::fmt::Display;
fn boxed<'x, I: Iterator>(_: Option<&'x I>, v: I::Item) -> Box<dyn Display + 'x> where I::Item: Display { Box::new(v) }
fn none<T>(_: &T) -> Option<&'static T> where { None }
fn forget<'a>(v: &'a str) -> Box<dyn Display> {
    let it = core::iter::repeat_with(|| -> &'a str { loop {} });
    let w = Box::leak(Box::new(it));
    boxed(Some(w), v)
}
fn attack() -> String { let b = { let s = String::from("gone gone gone"); forget(&s) }; b.to_string() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
