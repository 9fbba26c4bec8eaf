//! expect: refused associated-bound
//! rust-lang/rust 84366: the library makes the object, in a conversion to Box<dyn Error>.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::error::Error as E;
fn boxed<'x, I: Iterator>(_: &'x I, v: I::Item) -> Box<dyn E + 'x> where I::Item: E { v.into() }
#[derive(Debug)] struct M<'a>(&'a str);
impl core::fmt::Display for M<'_> { fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result { f.write_str(self.0) } }
impl E for M<'_> {}
fn forget<'a>(v: &'a str) -> Box<dyn E> {
    let it = core::iter::repeat_with(|| -> M<'a> { loop {} });
    boxed(Box::leak(Box::new(it)), M(v))
}
fn attack() -> String { let b = { let s = String::from("gone gone gone"); forget(&s) }; b.to_string() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
