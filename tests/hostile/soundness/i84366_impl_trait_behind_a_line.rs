//! expect: refused outlives
//! rust-lang/rust 84366: an `impl Trait` in another spelling.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use core::fmt::Debug;
use core::fmt::Debug as _Show;
fn mark<'l, I>(_: &I) -> Option<&'l I> { None }
fn erase<'l>(x: impl _Show + 'l) -> Box<dyn Debug + 'l> { Box::new(x) }
fn launder<'l, I: Iterator<Item: Debug>>(_: Option<&'l I>, x: I::Item) -> Box<dyn Debug + 'l> { erase(x) }
fn extend<'a>(x: &'a str) -> Box<dyn Debug> { launder(mark(&core::iter::repeat_with(|| -> &'a str { "" })), x) }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = format!("{o:?}");
    drop(t);
    r
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
