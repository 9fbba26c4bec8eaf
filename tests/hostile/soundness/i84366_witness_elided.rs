//! expect: refused self-lifetime
//! rust-lang/rust 84366: so is a lifetime without a name.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
// no lifetime of a method is named in the trait
trait Ext: Sized { fn ext(self, _: Option<&Self>) -> &str; }
impl Ext for &str { fn ext(self, _: Option<&Self>) -> &str { self } }
fn mark<'l, I>(_: &I) -> Option<&'l I> { None }
fn launder<I: Iterator<Item: Ext>>(_: Option<&I>, x: I::Item) -> &str { x.ext(None) }
fn extend<'a>(x: &'a str) -> &'static str { launder(mark(&core::iter::repeat_with(|| -> &'a str { "" })), x) }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
