//! expect: refused associated-bound
//! rust-lang/rust 84366: an `impl Trait` of a method is an associated type by another name.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
trait Ext: Sized { fn ext(self, _: Option<&Self>) -> &str; }
impl Ext for &str { fn ext(self, _: Option<&Self>) -> &str { self } }
fn mark<'l, I>(_: &I) -> Option<&'l I> { None }
struct Own<F>(F);
trait Tr { fn get(self) -> impl Ext; }
impl<'a, F: Fn() -> &'a str> Tr for Own<F> { fn get(self) -> impl Ext { (self.0)() } }
fn launder<P: Tr>(_: Option<&P>, p: P) -> &str { p.get().ext(None) }
fn give<'a>(x: &'a str) -> Own<impl Fn() -> &'a str> { Own(move || x) }
fn extend<'a>(x: &'a str) -> &'static str { let o = Own(|| -> &'a str { "" }); launder(mark(&o), o) }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
