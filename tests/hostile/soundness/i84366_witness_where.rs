//! expect: refused associated-bound
//! rust-lang/rust 84366: the bound stands behind `where`.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
trait Ext: Sized { fn ext(self, _: Option<&Self>) -> &str; }
impl Ext for &str { fn ext(self, _: Option<&Self>) -> &str { self } }
fn mark<'l, I>(_: &I) -> Option<&'l I> { None }
fn launder<I>(_: Option<&I>, x: I::Item) -> &str where I: Iterator, I::Item: Ext { x.ext(None) }
fn extend<'a>(x: &'a str) -> &'static str { launder(mark(&core::iter::repeat_with(|| -> &'a str { "" })), x) }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
