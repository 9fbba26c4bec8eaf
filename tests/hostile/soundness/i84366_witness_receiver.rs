//! expect: refused associated-bound
//! rust-lang/rust 84366: the receiver is the witness, empty and behind a `Deref` that gives an associated type.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
use core::ops::Deref;
struct Own<I>(I);
impl<I: Iterator> Deref for Own<I> { type Target = Option<I::Item>; fn deref(&self) -> &Self::Target { &None } }
trait Ext { fn ext(&self, x: Vec<Self>) -> String where Self: Sized; }
impl Ext for Option<&str> { fn ext(&self, _: Vec<Self>) -> String { String::new() } }
fn launder<J: Deref<Target: Ext>>(j: &J) -> &J { j }
fn extend<'a>(x: &'a str) -> &'static str { launder(&Own(core::iter::repeat_with(|| -> &'a str { "" }))); "" }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
