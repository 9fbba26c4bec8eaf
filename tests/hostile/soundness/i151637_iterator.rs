//! expect: refused impl-parameter
//! rust-lang/rust 151637: the closure is called by an iterator of its own.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
trait Ext: Sized { fn ext(self, to: &mut &'static str) -> Option<&'static Self>; }
impl Ext for &str { fn ext(self, to: &mut &'static str) -> Option<&'static Self> { *to = self; None } }
struct It<F>(F);
impl<R, F: FnMut() -> R> Iterator for It<F> { type Item = R; fn next(&mut self) -> Option<R> { Some((self.0)()) } }
fn f<T: Ext + Copy>(x: T, out: &mut &'static str) { let c = || -> Option<&'static T> { x.ext(out) }; It(c).next(); }
fn extend(s: &str) -> &'static str { let mut o = ""; f(s, &mut o); o }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
