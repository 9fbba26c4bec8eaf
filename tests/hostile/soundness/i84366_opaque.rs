//! expect: refused projection
//! rust-lang/rust 84366: an impl Trait with a lifetime in place of an object.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;

use core::fmt::Display;
fn opaque<'x, I: Iterator>(_: Option<&'x I>, v: I::Item) -> impl Display + 'x where I::Item: Display { v }
fn forget<'a>(v: &'a str) -> impl Display {
    let it = core::iter::repeat_with(|| -> &'a str { loop {} });
    let w = Box::leak(Box::new(it));
    opaque(Some(w), v)
}
fn attack() -> String { let b = { let s = String::from("gone gone gone"); let it = core::iter::repeat_with(|| -> &str { let _x = [&s[..]; 0]; loop {} }); let w: &'static _ = Box::leak(Box::new(core::iter::repeat_with(|| { if false { return ""; } loop {} }))); opaque(Some(w), s.as_str()) }; b.to_string() }
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
