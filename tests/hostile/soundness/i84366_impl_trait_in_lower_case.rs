//! expect: refused impl-parameter
//! rust-lang/rust 84366: an `impl Trait` whose trait has no name like one.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use core::fmt::Debug;
use core::marker::PhantomData;
trait show: Debug {}
impl show for &str {}
struct Wrap<'a, T>(Option<T>, PhantomData<&'a T>);
trait Run { fn go(self); }
struct S<F>(F);
impl<R, F: FnOnce() -> R> Run for S<F> { fn go(self) { (self.0)(); } }
fn erase<'l>(x: impl show + 'l) -> Box<dyn Debug + 'l> { Box::new(x) }
fn f<T: show>(x: T, out: &mut Option<Box<dyn Debug>>) {
    let c = || -> Wrap<'static, T> { *out = Some(erase(x)); Wrap(None, PhantomData) };
    S(c).go();
}
fn attack() -> String {
    let mut o = None;
    { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); f(s.as_str(), &mut o); }
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = format!("{o:?}");
    drop(t);
    r
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
