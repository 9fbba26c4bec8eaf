//! expect: refused associated-bound
//! rust-lang/rust 84366: the witness is the type that a method belongs to.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
struct Wrap<'l, T>(Option<&'l T>);
trait Ext: Sized { fn ext<'l>(self, _: Wrap<'l, Self>) -> &'l str; }
impl Ext for &str { fn ext<'l>(self, _: Wrap<'l, Self>) -> &'l str { self } }
impl<'l, I: Iterator<Item: Ext>> Wrap<'l, I> { fn of(_: &I) -> Self { Wrap(None) } fn launder(self, x: I::Item) -> &'l str { x.ext(Wrap(None)) } }
fn extend<'a>(x: &'a str) -> &'static str {
    let it = core::iter::repeat_with(|| -> &'a str { "" });
    Wrap::of(&it).launder(x)
}
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
