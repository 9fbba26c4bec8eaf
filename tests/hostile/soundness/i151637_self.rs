//! expect: refused closure-result
//! rust-lang/rust 151637: the parameter is in `Self`.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
trait Ext: Sized { fn ext(self, to: &mut &'static str) -> Option<&'static Self>; }
impl Ext for Hold<&str> { fn ext(self, to: &mut &'static str) -> Option<&'static Self> { *to = self.0; None } }
trait Run { fn go(self); }
struct S<F>(F);
impl<R, F: FnOnce() -> R> Run for S<F> { fn go(self) { (self.0)(); } }
struct Hold<T>(T);
trait Take: Sized { fn take_in(self, out: &mut &'static str); }
impl<T> Take for Hold<T> where Hold<T>: Sized { fn take_in(self, _: &mut &'static str) { let c = || -> Option<&'static Self> { None }; S(c).go(); } }
fn extend(s: &str) -> &'static str { let mut o = ""; Hold(s).take_in(&mut o); o }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
