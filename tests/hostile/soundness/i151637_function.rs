//! expect: refused impl-parameter
//! rust-lang/rust 151637: a function in place of the closure, and no type parameter.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use core::cell::Cell;
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(b"x") }
trait Run { fn go(self); }
struct S<A, F>(A, F);
impl<A, R, F: FnOnce(A) -> R> Run for S<A, F> { fn go(self) { (self.1)(self.0); } }
fn body<'a>(p: (&'a str, &Cell<&'static str>)) -> Option<&'static &'a str> { p.1.set(p.0); None }
fn f(x: &str, out: &Cell<&'static str>) { S((x, out), body).go() }
