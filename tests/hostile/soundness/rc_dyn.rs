//! expect: refused impl-parameter
//! rust-lang/rust 84366: a counted object.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::fmt::Display; use alloc::rc::Rc;
fn f<'x, I: Iterator>(_: &'x I, v: I::Item) -> Rc<dyn Display + 'x> where I::Item: Display { Rc::new(v) }
struct It<F>(F);
impl<T, F: Fn() -> T> Iterator for It<F> { type Item = T; fn next(&mut self) -> Option<T> { None } }
fn forget<'a>(v: &'a str) -> Rc<dyn Display> { f(&It(|| -> &'a str { loop {} }), v) }
fn attack() -> String { let b = { let s = String::from("gone gone gone"); forget(&s) }; b.to_string() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
