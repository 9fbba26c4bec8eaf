//! expect: refused impl-parameter
//! rust-lang/rust 151637: the type that a closure gives has no parameter.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(b"x") }
struct Own<I>(I);
trait Sink: Sized { fn sink(self, x: Self, out: &mut &'static str) {} }
trait Run { fn go(self); }
struct W2<'l, T>(Option<&'l T>, Option<T>);
impl<'a> Sink for W2<'static, &'a str> { fn sink(self, x: Self, out: &mut &'static str) { *out = x.1.unwrap() } }
impl<R, F: FnOnce() -> R> Run for Own<F> { fn go(self) { (self.0)(); } }
fn f<'a>(x: &'a str) { let c = || -> W2<'static, &'a str> { W2(None, None) }; Own(c).go(); }
