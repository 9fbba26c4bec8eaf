//! expect: refused erased
//! rust-lang/rust 84366: Peekable keeps the item that is put into it; nothing of our own is generic.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::fmt::Debug;
fn forget<'a>(v: &'a str) -> Box<dyn Debug> { let mut p = core::iter::repeat_with(|| -> &'a str { "" }).peekable(); *p.peek_mut().unwrap() = v; Box::new(p) }
fn attack() -> String { let b = { let s = String::from("gone gone gone"); forget(&s) }; format!("{b:?}") }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
