//! expect: refused impl-parameter
//! rust-lang/rust 84366: a boxed future keeps the item.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::fmt::Display; use core::pin::Pin; use core::future::Future;
fn f<'x, I: Iterator>(_: &'x I, v: I::Item) -> Pin<Box<dyn Future<Output = String> + 'x>> where I::Item: Display { Box::pin(async move { v.to_string() }) }
struct It<F>(F);
impl<T, F: Fn() -> T> Iterator for It<F> { type Item = T; fn next(&mut self) -> Option<T> { None } }
fn forget<'a>(v: &'a str) -> Pin<Box<dyn Future<Output = String>>> { f(&It(|| -> &'a str { loop {} }), v) }
fn attack() -> String { let b = { let s = String::from("gone gone gone"); forget(&s) }; String::new() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
