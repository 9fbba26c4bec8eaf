//! expect: refused projection
//! rust-lang/rust 84366: what an `Fn` gives leaves the lifetime out.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
struct Text<'a>(&'a str);
struct M<'a>(&'a str);
impl<'a> M<'a> { fn sink<'l>(_: Option<&'l M<'a>>, y: M<'a>) -> Text<'l> { Text(y.0) } }
fn mark<'l, I>(_: &I) -> Option<&'l I> { None }
fn launder<'l, I: Iterator, F: Fn(Option<&I::Item>, I::Item) -> Text>(_: Option<&'l I>, x: I::Item, f: F) -> Text<'l> { f(None, x) }
fn extend<'a>(x: &'a str) -> &'static str { launder(mark(&core::iter::repeat_with(|| -> M<'a> { M("") })), M(x), M::sink).0 }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
