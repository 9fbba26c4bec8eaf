//! expect: refused self-lifetime
//! rust-lang/rust 84366: the trait is of the iterator, and looks at its item.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
trait Ext: Iterator + Sized { fn ext(self, x: Self::Item, _: Option<&Self::Item>) -> &str; }
impl<'a, F: FnMut() -> &'a str> Ext for core::iter::RepeatWith<F> { fn ext<'l>(self, x: &'a str, _: Option<&'l &'a str>) -> &'l str { x } }
fn mark<'l, I>(_: &I) -> Option<&'l I> { None }
fn launder<I: Ext>(_: Option<&I>, i: I, x: I::Item) -> &str { i.ext(x, None) }
fn extend<'a>(x: &'a str) -> &'static str { let it = core::iter::repeat_with(|| -> &'a str { "" }); launder(mark(&it), it, x) }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
