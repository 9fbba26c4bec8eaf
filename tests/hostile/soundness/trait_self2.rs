//! expect: refused impl-parameter
//! rust-lang/rust 84366: the object is made in a trait's own method.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::fmt::Display;
trait Erase: Iterator + Sized { fn erase(&self, v: Self::Item) -> Box<dyn Display + '_> where Self::Item: Display { Box::new(v) } }
struct It<F>(F);
impl<T, F: Fn() -> T> Iterator for It<F> { type Item = T; fn next(&mut self) -> Option<T> { None } }
impl<T, F: Fn() -> T> Erase for It<F> {}
fn forget<'a>(v: &'a str) -> Box<dyn Display> { let it: &'static It<_> = &It(|| -> &'a str { loop {} }); it.erase(v) }
fn attack() -> String { let b = { let s = String::from("gone gone gone"); forget(&s) }; b.to_string() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
