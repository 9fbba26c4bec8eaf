//! expect: refused self-lifetime
//! rust-lang/rust 84366: the same, of core, and a struct without lifetimes has the same name elsewhere.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
use sandstorm_api::prelude::*;
mod decoy { pub struct Ref<T>(pub T); }
use core::cell;
use self::cell::Ref;
trait Ext: Sized { fn ext(self, _: Option<Ref<Self>>) -> &str; }
impl Ext for &str { fn ext(self, _: Option<Ref<Self>>) -> &str { self } }
fn extend<'a>(x: &'a str) -> &'static str { "" }
fn attack() -> String {
    let o = { let s = String::from("AAAAAAAAAAAAAAAAAAAAAAAA"); extend(s.as_str()) };
    let t = String::from("BBBBBBBBBBBBBBBBBBBBBBBB");
    let r = String::from(o);
    drop(t);
    r
}
pub async fn run(db: Db<'_>, _: &[u8]) -> Result<(), Error> { db.reply(attack().as_bytes()) }
