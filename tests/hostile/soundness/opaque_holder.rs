//! expect: refused projection
//! rust-lang/rust 84366: an impl Trait keeps the item and names only the iterator.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::fmt::Display;
fn mk<I: Iterator>(_: &I, v: I::Item) -> impl Display + use<I> where I::Item: Display { v }
fn forget<'a>(v: &'a str) -> Box<dyn Display> { Box::new(mk(&core::iter::repeat_with(|| -> &'a str { "" }), v)) }
fn attack() -> String { let b = { let s = String::from("gone gone gone"); forget(&s) }; b.to_string() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
