//! expect: refused self-lifetime
//! rust-lang/rust 84366: the same, with a slice, and no bound of an associated type.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use core::ops::Deref;
struct Own<I>(I);
impl<I: Iterator> Deref for Own<I> { type Target = [I::Item]; fn deref(&self) -> &Self::Target { &[] } }
trait Ext { fn ext(&self, x: Box<Self>) -> &str; }
impl<'a> Ext for Vec<&'a str> { fn ext(&self, x: Box<Self>) -> &str { x[0] } }
fn extend<'a>(x: &'a str) -> &'static str { "" }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
