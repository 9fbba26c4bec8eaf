//! expect: refused alias
//! rust-lang/rust 84366: an alias hides the lifetime.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use core::ops::Add;
type W<T> = Option<&'static T>;
struct M<'a>(&'a str);
impl<'a> Add<W<M<'a>>> for M<'a> { type Output = &'static str; fn add(self, _: W<M<'a>>) -> &'static str { self.0 } }
fn launder<I: Iterator<Item: Add<W<I::Item>, Output = &'static str>>>(_: W<I>, x: I::Item) -> &'static str { x + None }
fn mark<'l, I>(_: &I) -> Option<&'l I> { None }
fn extend<'a>(x: &'a str) -> &'static str { launder(mark(&core::iter::repeat_with(|| -> M<'a> { M("") })), M(x)) }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
