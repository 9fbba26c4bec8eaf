//! expect: refused erased
//! rust-lang/rust 84366: a boxed closure keeps the item.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::fmt::Display;
fn f<'x, I: Iterator>(_: &'x I, v: I::Item) -> Box<dyn Fn() -> String + 'x> where I::Item: Display { Box::new(move || v.to_string()) }
fn forget<'a>(v: &'a str) -> Box<dyn Fn() -> String> {
    f(Box::leak(Box::new(core::iter::repeat_with(|| -> &'a str { loop {} }))), v)
}
fn attack() -> String { let b = { let s = String::from("gone gone gone"); forget(&s) }; b() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
