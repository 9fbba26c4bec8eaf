//! expect: refused projection
//! rust-lang/rust 84366: what an `Fn` takes leaves the lifetime out, and is filled.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use core::cell::Cell;
fn mark<'l, I>(_: &I) -> Option<&'l I> { None }
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(b"x") }
struct M<'a>(&'a str);
struct Pairs<'l, A, B>(Option<&'l A>, Option<B>, Cell<&'l str>);
impl<'a> M<'a> { fn sink<'l>(y: M<'a>, p: &Pairs<'l, M<'a>, u8>) { p.2.set(y.0) } }
fn launder<'l, I: Iterator, G: Fn(I::Item, &Pairs<I::Item, u8>)>(w: Option<&'l I>, x: I::Item, g: G) -> &'l str { let p: Pairs<'l, I::Item, u8> = Pairs(None, None, Cell::new("")); g(x, &p); p.2.get() }
fn extend<'a>(x: &'a str) -> &'static str { let it = core::iter::repeat_with(|| -> M<'a> { M("") }); launder(mark(&it), M(x), M::sink) }
