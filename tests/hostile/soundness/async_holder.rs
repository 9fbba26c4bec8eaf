//! expect: refused projection
//! rust-lang/rust 84366: a future keeps a short-lived item, and its type names only the iterator.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::fmt::Display; use core::pin::Pin; use core::future::Future;
async fn mk<I: Iterator>(_: I, v: I::Item) -> String where I::Item: Display { v.to_string() }
fn forget<'a>(v: &'a str) -> Pin<Box<dyn Future<Output = String>>> { Box::pin(mk(core::iter::repeat_with(|| -> &'a str { "" }), v)) }
fn attack() -> String { let b = { let s = String::from("gone gone gone"); forget(&s) }; String::new() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
