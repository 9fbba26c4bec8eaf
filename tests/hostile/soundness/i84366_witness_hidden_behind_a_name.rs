//! expect: refused self-lifetime
//! rust-lang/rust 84366: the same, and the type has the name of one of core.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
struct Vec<'l, T>(Option<&'l T>);
trait Ext: Sized { fn ext(self, _: Vec<Self>) -> &str; }
impl Ext for &str { fn ext(self, _: Vec<Self>) -> &str { self } }
fn extend<'a>(x: &'a str) -> &'static str { "" }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
