//! expect: refused projection
//! rust-lang/rust 84366: the same, with `'_`.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use core::cell::Cell;
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(b"x") }
struct M<'a>(&'a str);
struct Pairs<'l, A, B>(Option<&'l A>, Option<B>, Cell<&'l str>);
fn launder<'l, I: Iterator, G: Fn(I::Item, &Pairs<'_, I::Item, u8>)>(w: Option<&'l I>, x: I::Item, g: G) -> &'l str { let p: Pairs<'l, I::Item, u8> = Pairs(None, None, Cell::new("")); g(x, &p); p.2.get() }
