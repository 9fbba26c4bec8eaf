//! expect: refused erased
//! rust-lang/rust 84366: a function says no more than a closure of what it gives.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
fn make<'a>() -> &'a str { "" }
fn extend<'a>(x: &'a str) -> Box<dyn FnMut() -> String> {
    let mut p = core::iter::repeat_with(make::<'a>).peekable();
    *p.peek_mut().unwrap() = x;
    Box::new(move || format!("{:?}", p.peek()))
}
fn attack() -> String {
    let mut o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = o();
    drop(t);
    r
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
