//! expect: refused self-lifetime
//! rust-lang/rust 84366: the lifetime of `Wrap` is left out.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
struct Wrap<'l, T>(Option<&'l T>);
trait Ext: Sized { fn ext(self, _: Wrap<Self>) -> &str; }
impl Ext for &str { fn ext(self, _: Wrap<Self>) -> &str { self } }
fn mark<'l, I>(_: &I) -> Wrap<'l, I> { Wrap(None) }
fn launder<T: Ext, I: Iterator<Item = T>>(_: Wrap<I>, x: T) -> &str { loop {} }
fn extend<'a>(x: &'a str) -> &'static str { launder(mark(&core::iter::repeat_with(|| -> &'a str { "" })), x) }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
