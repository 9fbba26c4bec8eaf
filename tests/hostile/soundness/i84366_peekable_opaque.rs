//! expect: refused projection
//! rust-lang/rust 84366: Peekable keeps the item, and an impl Trait hides the closure.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::fmt::Debug;
fn mk<'a>() -> impl Iterator<Item = &'a str> + Debug { core::iter::repeat_with(|| -> &'a str { "" }) }
fn forget<'a>(v: &'a str) -> Box<dyn Debug + 'a> { let mut p = mk::<'a>().peekable(); *p.peek_mut().unwrap() = v; Box::new(p) }
fn gen2<I: Iterator<Item: Debug> + Debug>(i: I) -> core::iter::Peekable<impl Iterator<Item = I::Item> + Debug> { i.peekable() }
fn forget2<'a>(v: &'a str) -> Box<dyn Debug> { let mut p = gen2(core::iter::repeat_with(|| -> &'a str { "" })); *p.peek_mut().unwrap() = v; Box::new(p) }
fn attack() -> String { let b = { let s = String::from("gone gone gone"); forget2(&s) }; format!("{b:?}") }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
