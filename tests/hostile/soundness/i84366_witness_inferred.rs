//! expect: refused self-lifetime
//! rust-lang/rust 84366: no type of the closure is written.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
struct Wrap<'l, T>(Option<&'l T>);
trait Ext: Sized { fn ext<'l>(self, _: Wrap<'l, Self>) -> &'l str; }
impl Ext for &str { fn ext<'l>(self, _: Wrap<'l, Self>) -> &'l str { self } }
fn mark<'l, I>(_: &I) -> Wrap<'l, I> { Wrap(None) }
fn launder<'l, I: Iterator<Item: Ext>>(_: Wrap<'l, I>, x: I::Item) -> &'l str { x.ext(Wrap(None)) }
fn extend(x: &str) -> &'static str { let it = core::iter::repeat_with(|| ""); launder(mark(&it), x) }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
