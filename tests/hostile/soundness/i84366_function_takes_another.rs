//! expect: refused erased
//! rust-lang/rust 84366: it gives a lifetime of its own and takes another for all.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
fn make<'a>(_: &u8) -> &'a str { "" }
fn extend<'a>(x: &'a str) -> Box<dyn FnMut() -> String> {
    let mut p = const { &[1_u8, 2, 3] }.iter().map(make::<'a>).peekable();
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
