//! expect: refused projection
//! rust-lang/rust 84366: a Peekable in a struct of our own keeps the item.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::fmt::Debug; use core::iter::Peekable;
#[derive(Debug)] struct W<I: Iterator<Item: Debug>>(Peekable<I>);
fn hide<I: Iterator<Item: Debug>>(i: I) -> W<I> { W(i.peekable()) }
fn forget<'a>(v: &'a str) -> Box<dyn Debug> { let mut p = hide(core::iter::repeat_with(|| -> &'a str { "" })); *p.0.peek_mut().unwrap() = v; Box::new(p) }
fn attack() -> String { let b = { let s = String::from("gone gone gone"); forget(&s) }; format!("{b:?}") }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
