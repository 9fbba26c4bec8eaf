//! expect: refused erased
//! rust-lang/rust 84366: a function with a type parameter.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
fn make<'a, T: Default>(_: T) -> &'a str { "" }
fn extend<'a>(x: &'a str) -> Box<dyn FnMut() -> String> {
    let mut p = core::iter::repeat(1_u8).map(make::<'a, u8>).peekable();
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
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
