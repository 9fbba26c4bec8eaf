//! expect: refused macro-body
//! rust-lang/rust 84366: the same in another macro.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use core::fmt::Debug;
fn mark<'l, I>(_: &I) -> Option<&'l I> { None }
fn launder<'l, I: Iterator<Item: Debug>>(_: Option<&'l I>, x: I::Item) -> Box<dyn Debug + 'l> {
    let mut kept = None;
    let _ = format!("{}", { fn erase<'l, Q: Debug>(x: Q, _: Option<&'l Q>) -> Box<dyn Debug + 'l> { Box::new(x) } kept = Some(erase(x, None)); 1 });
    kept.unwrap()
}
fn extend<'a>(x: &'a str) -> Box<dyn Debug> { launder(mark(&core::iter::repeat_with(|| -> &'a str { "" })), x) }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = format!("{o:?}");
    drop(t);
    r
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
