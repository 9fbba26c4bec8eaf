//! expect: refused erased
//! rust-lang/rust 84366: a function of a type with a lifetime.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
#[derive(Debug)]
struct Token<'a>(&'a str);
impl<'a> Token<'a> { fn none() -> Option<Token<'a>> { None } }
fn extend<'a>(x: &'a str) -> Box<dyn FnMut() -> String> {
    let mut p = core::iter::repeat_with(Token::<'a>::none).peekable();
    *p.peek_mut().unwrap() = Some(Token(x));
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
