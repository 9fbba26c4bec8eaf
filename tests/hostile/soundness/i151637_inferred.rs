//! expect: refused closure-result
//! rust-lang/rust 151637: the parameter is left to be inferred.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
trait Ext: Sized { fn ext(self, to: &mut &'static str) -> Option<&'static Self>; }
impl Ext for &str { fn ext(self, to: &mut &'static str) -> Option<&'static Self> { *to = self; None } }
trait Run { fn go(self); }
struct S<F>(F);
impl<R, F: FnOnce() -> R> Run for S<F> { fn go(self) { (self.0)(); } }
fn f<T: Ext>(x: T, out: &mut &'static str) { let c = || -> Option<&'static _> { x.ext(out) }; S(c).go(); }
fn extend(s: &str) -> &'static str { let mut o = ""; f(s, &mut o); o }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
