//! expect: refused projection
//! rust-lang/rust 84366: a struct keeps the item, and its type names only the iterator.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::fmt::{self, Display};
struct Holder<I: Iterator>(I::Item);
impl<I: Iterator> Display for Holder<I> where I::Item: Display { fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { self.0.fmt(f) } }
fn hold<I: Iterator>(_: &I, v: I::Item) -> Holder<I> { Holder(v) }
fn forget<'a>(v: &'a str) -> Box<dyn Display> { Box::new(hold(&core::iter::repeat_with(|| -> &'a str { "" }), v)) }
fn attack() -> String { let b = { let s = String::from("gone gone gone"); forget(&s) }; b.to_string() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
