//! expect: refused self-lifetime
//! rust-lang/rust 84366: so is what a method gives, and a supertrait bounds an associated type.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
trait Ext: Sized { fn ext(self, to: &mut &'static str) -> Option<&'static Self>; }
impl Ext for &str { fn ext(self, to: &mut &'static str) -> Option<&'static Self> { *to = self; None } }
trait Give: Iterator<Item: Ext> + Sized { fn give(self, x: Self::Item, to: &mut &'static str) -> Option<&'static Self> { x.ext(to); None } }
impl<R: Ext, F: FnMut() -> R> Give for core::iter::RepeatWith<F> {}
fn extend<'a>(x: &'a str) -> &'static str { let mut o = ""; core::iter::repeat_with(|| -> &'a str { "" }).give(x, &mut o); o }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, args: &[u8]) -> Result<(), Error> { let s = attack(); db.reply(s.as_bytes()) }
