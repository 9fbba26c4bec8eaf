//! expect: refused closure-result
//! rust-lang/rust 151637: a closure says that it gives a parameter behind a lifetime.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use core::marker::PhantomData;
struct Wrap<'a, T>(Option<T>, PhantomData<&'a T>);
trait Ext: Sized { fn ext<'l>(self, _: Wrap<'l, Self>) -> &'l str; }
impl Ext for &str { fn ext<'l>(self, _: Wrap<'l, Self>) -> &'l str { self } }
trait Run { fn go(self); }
struct S<F>(F);
impl<R, F: FnOnce() -> R> Run for S<F> { fn go(self) { (self.0)(); } }
fn f<T: Ext>(x: T, out: &mut &'static str) {
    let c = || -> Wrap<'static, T> { *out = x.ext(Wrap(None, PhantomData)); Wrap(None, PhantomData) };
    S(c).go();
}
fn attack() -> String {
    let mut o = "";
    { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); f(s.as_str(), &mut o); }
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
