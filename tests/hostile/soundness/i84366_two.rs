//! expect: refused erased
//! rust-lang/rust 84366: the object is made one function further on.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

fn g<'x, T>(v: T, _: Option<&'x T>) -> Box<dyn core::fmt::Display + 'x> where T: core::fmt::Display { Box::new(v) }
fn f<'x, I: Iterator>(_: Option<&'x I>, v: I::Item) -> Box<dyn core::fmt::Display + 'x> where I::Item: core::fmt::Display { g(v, None) }
fn forget<'a>(v: &'a str) -> Box<dyn core::fmt::Display> {
    f(w(&core::iter::repeat_with(|| -> &'a str { loop {} })), v)
}
fn w<T>(_: &T) -> Option<&'static T> { None }
fn attack() -> String { let b = { let s = String::from("gone gone gone"); forget(&s) }; b.to_string() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
