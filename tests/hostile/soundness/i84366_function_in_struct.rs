//! expect: refused erased
//! rust-lang/rust 84366: a struct of one's own around the function.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
struct Own<F>(F);
impl<R, F: FnMut() -> R> Own<F> { fn all(self) -> core::iter::RepeatWith<F> { core::iter::repeat_with(self.0) } }
fn make<'a>() -> &'a str { "" }
fn extend<'a>(x: &'a str) -> Box<dyn FnMut() -> String> {
    let mut p = Own(make::<'a>).all().peekable();
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
