//! expect: refused associated-bound
//! rust-lang/rust 84366: the bound is a supertrait's.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
trait Ext: Sized { fn ext(self, _: Option<&Self>) -> &str; }
impl Ext for &str { fn ext(self, _: Option<&Self>) -> &str { self } }
trait Give: Iterator<Item: Ext> + Sized { fn give(&self, x: Self::Item) -> usize { 1 } }
fn extend<'a>(x: &'a str) -> &'static str { "" }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
