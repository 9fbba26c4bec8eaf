//! expect: refused impl-parameter
//! rust-lang/rust 151637: the same, with a type of core.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
trait Ext: Sized { fn ext<'l>(self, _: Option<&'l Self>) -> &'l str; }
impl Ext for &str { fn ext<'l>(self, _: Option<&'l Self>) -> &'l str { self } }
trait Run { fn go(self); }
struct S<F>(F);
impl<R, F: FnOnce() -> R> Run for S<F> { fn go(self) { (self.0)(); } }
fn f<T: Ext>(x: T, out: &mut &'static str) {
    let c = || -> Option<&'static T> { *out = x.ext(None); None };
    S(c).go();
}
fn extend(s: &str) -> &'static str { let mut o = ""; f(s, &mut o); o }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
