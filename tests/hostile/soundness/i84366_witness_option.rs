//! expect: refused associated-bound
//! rust-lang/rust 84366: `Option<&Self>` is.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
trait Ext: Sized { fn ext<'l>(self, _: Option<&'l Self>) -> &'l str; }
impl Ext for &str { fn ext<'l>(self, _: Option<&'l Self>) -> &'l str { self } }
fn mark<'l, I>(_: &I) -> Option<&'l I> { None }
fn launder<'l, I: Iterator<Item: Ext>>(_: Option<&'l I>, x: I::Item) -> &'l str { x.ext(None) }
fn extend<'a>(x: &'a str) -> &'static str {
    let it = core::iter::repeat_with(|| -> &'a str { "" });
    launder(mark(&it), x)
}
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
