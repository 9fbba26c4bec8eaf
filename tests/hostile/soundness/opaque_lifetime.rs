//! expect: refused outlives
//! rust-lang/rust 84366: impl Trait bound by a lifetime that its value does not live for.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::fmt::Debug;
fn hide<'a, 'x>(v: &'a str, _: &'x ()) -> impl Debug + 'x { let mut p = core::iter::repeat_with(|| -> &'a str { "" }).peekable(); *p.peek_mut().unwrap() = v; p }
fn attack() -> String { let b = { let s = String::from("gone gone gone"); hide(&s, &()) }; format!("{b:?}") }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
