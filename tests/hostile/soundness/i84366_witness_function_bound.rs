//! expect: refused projection
//! rust-lang/rust 84366: what an `Fn` takes leaves the lifetime out.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
struct Wrap<'l, T>(Option<&'l T>);
struct M<'a>(&'a str);
impl<'a> M<'a> { fn sink<'l>(_: Wrap<'l, M<'a>>, y: M<'a>) -> &'l str { y.0 } }
fn mark<'l, I>(_: &I) -> Wrap<'l, I> { Wrap(None) }
fn launder<'l, I: Iterator, F: Fn(Wrap<I::Item>, I::Item) -> &str>(_: Wrap<'l, I>, x: I::Item, f: F) -> &'l str { f(Wrap(None), x) }
fn extend<'a>(x: &'a str) -> &'static str { launder(mark(&core::iter::repeat_with(|| -> M<'a> { M("") })), M(x), M::sink) }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
